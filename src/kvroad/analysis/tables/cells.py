"""Cell folders to frames: pulls, cells, witnesses, provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from kvroad.analysis.tables.cell_folder import CellFolder, parse_pulls, read_cell
from kvroad.analysis.tables.clock_grid import grid_of
from kvroad.analysis.tables.design_file import DesignCell
from kvroad.analysis.tables.metrics import METRICS, WARMUP
from kvroad.analysis.tables.serving import served_cells
from kvroad.study.serving import AGGREGATED

__all__ = [
    "NOT_PROVEN",
    "cells_frame",
    "cells_table",
    "launch_values",
    "provenance",
    "pulls_frame",
    "pulls_table",
    "read_cells",
    "witnesses_table",
]

NOT_PROVEN = "cell not proven"

_PULL_COLUMNS = [
    "study",
    "session",
    "cell",
    "launch",
    "arm",
    "transport",
    "variant",
    "prompt_tokens",
    "block",
    "rank",
    "phase",
    "pull",
    "in_flight",
    "operation",
    "descriptors_planned",
    "descriptors_given",
    "descriptors_moved",
    "bytes_planned",
    "bytes_moved",
    "post_us",
    "xfer_us",
    "after_post_us",
    "wall_us",
    "start_mono_ns",
    "state",
    "error",
    "verified",
    "outcome",
    "is_warmup",
    "is_dropped",
    "drop_reason",
]
_PLANNED_COLUMNS = ["cell", "launch", "arm", "transport", "variant", "prompt_tokens", "block"]
_TEXTS = [
    "host",
    "session",
    "outcome",
    "reason",
    "road_expected",
    "road_seen",
    "where",
    "quote",
    "measured_at",
    "boot_id",
    "run_id",
    "nixl_version",
    "ucx_version",
    "ucx_tls",
    "environment",
    "operation",
    "gpus",
]
_INTEGERS = ["attempt", "descriptors", "descriptor_bytes", "pull_bytes"]
_WITNESS_COLUMNS = [
    "cell",
    "arm",
    "prompt_tokens",
    "block",
    "name",
    "status",
    "expected",
    "seen",
    "where",
]
_VARYING = frozenset({"load_1_min", "memory_available_bytes"})


class FactValue(TypedDict):
    """A value of a fact, and in how many cells it was seen."""

    value: str
    cells: int


def read_cells(cells: Iterable[DesignCell], results_dir: Path) -> list[CellFolder]:
    """Read the folders of all planned cells, in planned order."""
    return [read_cell(cell, results_dir) for cell in cells]


def pulls_frame(cells: Sequence[DesignCell], results_dir: Path, study: str = "") -> pd.DataFrame:
    """Return one row per pull and rank of the planned cells, dropped rows kept and marked."""
    return pulls_table(read_cells(cells, results_dir), study)


def cells_frame(
    cells: Sequence[DesignCell],
    results_dir: Path,
    study: str = "",
    kv_layout: Mapping[int, Mapping[str, int]] | None = None,
) -> pd.DataFrame:
    """Return one row per planned cell with outcome, road, provenance and launch values."""
    folders = read_cells(cells, results_dir)
    return cells_table(folders, pulls_table(folders, study), study, kv_layout)


def pulls_table(folders: Sequence[CellFolder], study: str = "") -> pd.DataFrame:
    """Return the pulls of cell folders that were read already; see `pulls_frame`."""
    pulls = parse_pulls(folders)
    facts = pd.DataFrame(
        [_plan_row(f) | {"outcome": f.verdict, "session": _session(f)} for f in folders],
        columns=[*_PLANNED_COLUMNS, "outcome", "session"],
    )
    frame = pulls.merge(facts, on="cell", how="left", validate="many_to_one")
    frame["study"] = study
    frame["is_warmup"] = frame["phase"] == WARMUP
    frame["after_post_us"] = frame["xfer_us"] - frame["post_us"]
    frame["drop_reason"] = _drop_reasons(frame)
    frame["is_dropped"] = frame["drop_reason"] != ""
    return frame[_PULL_COLUMNS]


def _drop_reasons(pulls: pd.DataFrame) -> pd.Series[str]:
    """Return why each row carries no number, or an empty text; the first reason counts."""
    post, xfer = pulls["post_us"], pulls["xfer_us"]
    conditions = [
        (pulls["outcome"] != "proven", NOT_PROVEN),
        (pulls["state"] != "DONE", "pull failed"),
        (~pulls["verified"].fillna(True).astype(bool), "bytes differ from the pattern"),
        (post.isna() | xfer.isna(), "no telemetry"),
        ((post < 0) | (xfer <= 0), "time not above zero"),
        (post > xfer, "post exceeds transfer"),
    ]
    tests = [np.asarray(test, dtype=bool) for test, _ in conditions]
    reasons = np.select(tests, [reason for _, reason in conditions], default="")
    return pd.Series(reasons, index=pulls.index, dtype="str")


def launch_values(pulls: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell and a column per metric: its statistic over its phase's kept pulls.

    A pull is one rank's transfer, so the statistic runs over the rows of all ranks. Times have
    a column ``<metric>_grid`` too: the step of the clock that all of the pulls lie on.
    """
    kept = pulls[~pulls["is_dropped"] & ~pulls["is_warmup"]]
    values = pd.DataFrame(index=pd.Index(kept["cell"].unique(), name="cell"))
    for metric in METRICS:
        if metric.of_pulls is None:
            continue
        rows = kept[kept["phase"] == metric.phase]
        by_cell = metric.of_pulls(rows).astype("float64").groupby(rows["cell"])
        values[metric.name] = by_cell.agg(metric.statistic) / metric.per_unit
        if metric.is_time:
            values[f"{metric.name}_grid"] = by_cell.agg(_grid) / metric.per_unit
    return values


def _grid(times_us: pd.Series[Any]) -> float:
    return grid_of(times_us.to_numpy(dtype=float))


def cells_table(
    folders: Sequence[CellFolder],
    pulls: pd.DataFrame,
    study: str = "",
    kv_layout: Mapping[int, Mapping[str, int]] | None = None,
    *,
    is_served: bool = False,
) -> pd.DataFrame:
    """Return the cells of folders that were read already; see `cells_frame`.

    ``n_pulls`` counts the rows of the measured phases, ``n_dropped`` those of them that
    carry no number, ``n_warmup`` the rows of the warm-up; ``executed_order`` ranks the
    starts of the first measured phase. Cells of serving engines have the columns of
    `served_cells`; their ``statistic`` is the mean, of transfers.

    Others read these columns, those of cells.csv, by name: none goes or changes what it means.
    """
    layout = kv_layout or {}
    rows = [_cell_row(folder, layout) | {"study": study} for folder in folders]
    frame = pd.DataFrame(rows, columns=["study", *_PLANNED_COLUMNS, *_TEXTS, *_INTEGERS])
    frame = frame.astype(dict.fromkeys(_INTEGERS, "Int64") | dict.fromkeys(_TEXTS, "str"))
    frame["executed_order"] = _executed_order(folders)
    if is_served:
        frame["statistic"] = "mean"
        return frame.join(served_cells(folders, AGGREGATED), on="cell")
    measured = pulls[~pulls["is_warmup"]].groupby("cell")
    for name, counts in (
        ("n_pulls", measured.size()),
        ("n_dropped", measured["is_dropped"].sum()),
        ("n_warmup", pulls[pulls["is_warmup"]].groupby("cell").size()),
    ):
        frame[name] = frame["cell"].map(counts).fillna(0).astype("int64")
    _fill_sizes(frame, pulls)
    frame["statistic"] = "median"
    return frame.join(launch_values(pulls), on="cell")


def _plan_row(folder: CellFolder) -> dict[str, str | int]:
    return {name: getattr(folder.planned, name) for name in _PLANNED_COLUMNS}


def _session(folder: CellFolder) -> str:
    return str(folder.identity.get("session", "main"))


def _environment(folder: CellFolder) -> dict[str, str]:
    """Return the UCX and NIXL variables that the cell's processes were to have."""
    given = (folder.identity.get("identity") or {}).get("environment") or {}
    return {k: v for k, v in given.items() if k.startswith(("UCX_", "NIXL_"))}


def _cell_row(folder: CellFolder, layout: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    outcome, versions = folder.outcome, folder.facts.get("versions") or {}
    planned = folder.identity.get("kv_layout")
    if planned is None:
        # The design's layout is the default variant's; another's stands in its cell.json.
        is_default = folder.planned.variant == "blocks"
        planned = layout.get(folder.planned.prompt_tokens, {}) if is_default else {}
    return _plan_row(folder) | {
        "host": _host(folder),
        "session": _session(folder),
        "outcome": folder.verdict,
        "reason": folder.defect or outcome.get("reason", ""),
        "road_expected": ", ".join(outcome.get("expected") or []) or None,
        "road_seen": outcome.get("seen"),
        "where": outcome.get("where"),
        "quote": outcome.get("quote"),
        "attempt": outcome.get("attempt"),
        "measured_at": outcome.get("measured_at"),
        "boot_id": folder.facts.get("boot_id"),
        "run_id": outcome.get("run_id"),
        "nixl_version": versions.get("nixl"),
        "ucx_version": versions.get("ucx") or ", ".join(folder.ucx_versions) or None,
        "ucx_tls": _environment(folder).get("UCX_TLS"),
        "environment": json.dumps(_environment(folder), sort_keys=True, ensure_ascii=False),
        "operation": _operation(folder),
        "gpus": _gpus(folder),
        "descriptors": planned.get("descriptors"),
        "descriptor_bytes": planned.get("descriptor_bytes"),
        "pull_bytes": planned.get("bytes"),
    }


def _host(folder: CellFolder) -> str | None:
    """Return the host that the cell was measured on, else the one it is planned on."""
    host = (folder.identity.get("identity") or {}).get("host") or {}
    return host.get("name") or folder.planned.host or None


def _operation(folder: CellFolder) -> str | None:
    engine = (folder.identity.get("identity") or {}).get("engine") or {}
    return engine.get("operation")


def _gpus(folder: CellFolder) -> str | None:
    """Return the names of the host's GPUs, each once; None where nothing was measured."""
    if not folder.facts:
        return None
    names = {str(gpu.get("name")) for gpu in folder.facts.get("gpus") or []}
    return ", ".join(sorted(names)) or "none"


def _executed_order(folders: Sequence[CellFolder]) -> pd.Series[Any]:
    # ASSUME the wall clock orders boots; within its second, the monotonic clock orders cells.
    started = sorted((f.first_phase, i) for i, f in enumerate(folders) if f.first_phase)
    ranks = {index: rank for rank, (_, index) in enumerate(started, start=1)}
    return pd.Series([ranks.get(i) for i in range(len(folders))], dtype="Int64")


def _fill_sizes(cells: pd.DataFrame, pulls: pd.DataFrame) -> None:
    """Put what the pulls were given in place of what the layout foresaw."""
    first = pulls.groupby("cell")[["descriptors_planned", "bytes_planned"]].first()
    descriptors: pd.Series[Any] = cells["cell"].map(first["descriptors_planned"]).astype("Int64")
    size: pd.Series[Any] = cells["cell"].map(first["bytes_planned"]).astype("Int64")
    cells["descriptors"] = descriptors.fillna(cells["descriptors"])
    cells["pull_bytes"] = size.fillna(cells["pull_bytes"])
    each = (size // descriptors.where(descriptors > 0)).astype("Int64")
    cells["descriptor_bytes"] = each.fillna(cells["descriptor_bytes"])


def witnesses_table(folders: Sequence[CellFolder]) -> pd.DataFrame:
    """Return one row per cell and witness of its outcome: status, expected, seen, where."""
    rows = [
        {**_plan_row(folder), **{k: str(v) for k, v in witness.items() if v is not None}}
        for folder in folders
        for witness in folder.outcome.get("witnesses") or []
    ]
    return pd.DataFrame(rows, columns=_WITNESS_COLUMNS)


def provenance(folders: Sequence[CellFolder]) -> dict[str, list[FactValue]]:
    """Return each fact of hosts and software with its distinct values and their cell counts.

    Facts that differ from moment to moment (load, free memory) are left to the raw files.
    """
    counts: dict[str, dict[str, int]] = {}
    for folder in folders:
        for name, value in _flat_facts(folder).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            values = counts.setdefault(name, {})
            values[text] = values.get(text, 0) + 1
    return {
        name: [{"value": value, "cells": n} for value, n in sorted(values.items())]
        for name, values in sorted(counts.items())
    }


def _flat_facts(folder: CellFolder) -> dict[str, object]:
    given = {
        **folder.facts,
        "ucx_version": ", ".join(folder.ucx_versions) or None,
        "git": folder.identity.get("git"),
        "env": _environment(folder),
    }
    flat: dict[str, object] = {}
    for name, value in given.items():
        if name in _VARYING or value is None:
            continue
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": v for key, v in value.items() if v is not None}
        else:
            flat[name] = value
    return flat
