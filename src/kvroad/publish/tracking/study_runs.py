"""Files and tables to the runs that MLflow should hold; no mlflow in here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvroad.analysis.tables import METRICS, DesignFile, read_design, statistic_of
from kvroad.errors import UserError
from kvroad.publish.tracking.cell_files import commit_tags, read_cell_files
from kvroad.publish.tracking.names import NAME_LIMIT, clip
from kvroad.publish.tracking.run import NOTE_TAG, RunRecord, Scalar, metrics, params, tags

__all__ = ["StudyRecords", "read_records"]

_NAMED = ("arm", "transport", "variant", "prompt_tokens", "block", "gpus")
# Column of the cells table to the param that it is.
_VERSIONS = {"nixl": "nixl_version", "ucx": "ucx_version"}
_COUNTS = ("descriptors", "descriptor_bytes", "pull_bytes", "n_pulls", "n_dropped")
# Of serving engines: as the engine counted them, and requests of the measured phases.
_SERVED_COUNTS = (
    *("descriptors_moved", "bytes_moved", "descriptors_moved_in_flight", "bytes_moved_in_flight"),
    *("n_requests", "n_failed_requests"),
)
_CELL_TAGS = (
    *("cell", "block", "attempt", "measured_at", "outcome", "reason"),
    *("road_expected", "road_seen", "where", "engine_version", "prompts", "cache_check"),
)
# Statistic of a launch's value to the ending of its metric.
_ENDINGS = {
    "median": "p50",
    "mean": "mean",
    "rate": "rate",
    "difference of medians": "p50_difference",
}
_OUTCOMES = ("proven", "refused", "failed", "not measured")
_RATIOS = ("ratio", "ratio_low", "ratio_high", "difference", "difference_low", "difference_high")
_REPORT_FILES = (
    "verdict.md",
    "verdict.csv",
    "verdict.json",
    "claims.csv",
    "cost_model.csv",
    "index.html",
)
_SOURCE_TAGS = {"mlflow.source.name": "kvroad", "mlflow.source.type": "LOCAL"}


@dataclass(frozen=True)
class StudyRecords:
    """All runs of one resolved study."""

    study: str
    session: str
    parent: RunRecord
    cells: tuple[RunRecord, ...]
    summary: RunRecord
    n_not_measured: int


def read_records(
    design_path: Path, results_dir: Path, tables_dir: Path, report_dir: Path, root: Path
) -> StudyRecords:
    """Read what a resolved study has measured; ``root`` is asked for the git commit.

    Raises
    ------
    UserError
        When the design or a table is missing or cannot be read.
    """
    design = read_design(design_path)
    # The design's dataclass leaves the session out.
    session = str(json.loads(design_path.read_text(encoding="utf-8")).get("session") or "main")
    table = _read_table(pd.read_parquet, tables_dir / "cells.parquet")
    verdict_dir = tables_dir if (tables_dir / "verdict.csv").is_file() else report_dir
    verdict = _read_table(pd.read_csv, verdict_dir / "verdict.csv")
    rows = _rows(table)
    labels, git = {"study": design.study_name, "session": session}, _git_tags(root)
    cells = tuple(
        _cell_record(row, results_dir / "cells" / str(row["cell"]), labels, git)
        for row in rows
        if row["outcome"] != "not measured"
    )
    counts = table["outcome"].value_counts().reindex(_OUTCOMES, fill_value=0).to_dict()
    times = _span(cells)
    return StudyRecords(
        study=design.study_name,
        session=session,
        parent=_parent_record(labels, times, git),
        cells=cells,
        summary=_summary_record(design, labels, times, git, counts, verdict, report_dir),
        n_not_measured=int(counts["not measured"]),
    )


def _read_table(read: Callable[[Path], pd.DataFrame], path: Path) -> pd.DataFrame:
    try:
        return read(path)
    except pd.errors.EmptyDataError:
        # A study of one arm has no contrast, and its verdict not even columns.
        return pd.DataFrame()
    except (OSError, ValueError) as error:
        raise UserError(f"table {path} cannot be read: {error}") from error


def _rows(table: pd.DataFrame) -> list[dict[str, Scalar]]:
    """Return a table's rows with None for every absent value."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]


def _span(cells: Iterable[RunRecord]) -> tuple[int, int]:
    """Return when the first cell started and the last one ended, 0 without cells."""
    spans = [(cell.start_ms, cell.end_ms) for cell in cells]
    return min((s for s, _ in spans), default=0), max((e for _, e in spans), default=0)


def _cell_record(
    row: Mapping[str, Scalar], folder: Path, labels: Mapping[str, str], git: Mapping[str, str]
) -> RunRecord:
    """Return a cell's run: FAILED and without a metric unless its road is proven."""
    files = read_cell_files(folder, str(row["cell"]))
    is_proven = row["outcome"] == "proven"
    note = f"{row['outcome']}: {row.get('reason')}\n\n    {files.quote}".rstrip()
    return RunRecord(
        kind="cell",
        key=str(row["cell"]),
        name=clip(f"{row['arm']} {row['prompt_tokens']} b{row['block']}", NAME_LIMIT),
        status="FINISHED" if is_proven else "FAILED",
        start_ms=files.start_ms,
        end_ms=files.end_ms,
        # MLflow's compare page plots the first params that differ by name: arm and
        # prompt_tokens come before the settings, which all begin with "setting/".
        params=params(
            {
                **{name: row.get(name) for name in _NAMED},
                **{name: row.get(column) for name, column in _VERSIONS.items()},
                **files.params,
            }
        ),
        metrics=_cell_metrics(row) if is_proven else {},
        tags=tags(
            {
                **labels,
                **_SOURCE_TAGS,
                **files.git,
                **{name: row.get(name) for name in _CELL_TAGS},
                "launch": files.launch or row.get("launch"),
                NOTE_TAG: None if is_proven else note,
            }
        ),
        artifacts=files.artifacts,
        volatile={} if files.git else git,
    )


def _cell_metrics(row: Mapping[str, Scalar]) -> dict[str, float]:
    """Return a cell's metrics, each with an ending that says what statistic it is."""
    is_served = row.get("statistic") == "mean"
    statistics = {m.name: statistic_of(m, is_served=is_served) for m in METRICS}
    values = {
        f"{name}/{_ENDINGS.get(statistic, statistic)}": row.get(name)
        for name, statistic in statistics.items()
    }
    return metrics(values | {name: row.get(name) for name in (*_COUNTS, *_SERVED_COUNTS)})


def _parent_record(
    labels: Mapping[str, str], times: tuple[int, int], git: Mapping[str, str]
) -> RunRecord:
    return RunRecord(
        kind="session",
        key=labels["session"],
        name=clip(f"{labels['study']} {labels['session']}", NAME_LIMIT),
        status="FINISHED",
        start_ms=times[0],
        end_ms=times[1],
        tags=tags({**labels, **_SOURCE_TAGS}),
        volatile=git,
    )


def _summary_record(
    design: DesignFile,
    labels: Mapping[str, str],
    times: tuple[int, int],
    git: Mapping[str, str],
    counts: Mapping[Any, int],
    verdict: pd.DataFrame,
    report_dir: Path,
) -> RunRecord:
    """Return the resolved study's run: verdict as metrics and tags, report as artifacts."""
    rows = _rows(verdict)
    numbers = {
        f"{row['metric']}_{name}/{_contrast(row)}": row.get(name)
        for row in rows
        for name in _RATIOS
    }
    words = {f"verdict/{row['metric']}/{_contrast(row)}": row.get("verdict") for row in rows}
    note = report_dir / "verdict.md"
    planned = sum(counts.values())
    cells = {f"cells_{name.replace(' ', '_')}": counts[name] for name in _OUTCOMES}
    return RunRecord(
        kind="study",
        key=design.study,
        name=clip(f"{design.study} verdict", NAME_LIMIT),
        status="FINISHED",
        start_ms=times[0],
        end_ms=times[1],
        params=params({"baseline": design.baseline}),
        metrics=metrics({"cells_planned": planned, **cells, **numbers}),
        tags=tags(
            {
                **labels,
                **_SOURCE_TAGS,
                "study_slug": design.study,
                "outcome": f"{counts['proven']} of {planned} cells proven",
                "overrides": " ".join(design.overrides),
                NOTE_TAG: note.read_text("utf-8") if note.is_file() else None,
                **words,
            },
            metric_names=numbers | words,
        ),
        artifacts=_report_artifacts(report_dir),
        volatile=git,
    )


def _contrast(row: Mapping[str, Scalar]) -> str:
    """Return ``tcp_vs_shm_p4096``; an arm's ``+`` becomes ``.``, which MLflow allows."""
    pair = f"{row['arm']}_vs_{row['baseline']}".replace("+", ".")
    return f"{pair}_p{row['prompt_tokens']}"


def _report_artifacts(report_dir: Path) -> dict[str, bytes]:
    # Snakemake leaves a hidden time stamp in a folder that is an output.
    found = (report_dir / "figures").rglob("[!.]*")
    figures = sorted(path for path in found if path.is_file())
    paths = [*(report_dir / name for name in _REPORT_FILES), *figures]
    return {
        path.relative_to(report_dir).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file()
    }


def _git_tags(root: Path) -> dict[str, str]:
    """Return the git tags of the working tree at ``root``; empty where there is no commit."""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, timeout=10)
        if head.returncode != 0:
            return {}
        state = subprocess.run([*git, "status", "--porcelain"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return commit_tags(head.stdout.decode().strip(), bool(state.stdout.strip()))
