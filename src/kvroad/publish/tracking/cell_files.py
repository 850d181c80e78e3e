"""What a cell's own files say of its run, beside what the table of cells says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kvroad.errors import UserError
from kvroad.evidence.redact import redact_text
from kvroad.files import read_json
from kvroad.publish.tracking.run import Scalar

__all__ = ["CellFiles", "commit_tags", "read_cell_files"]

_SMALL_BYTES = 1 << 20
_FACTS = ("kernel", "cpu", "n_cpus")
_SECTIONS = {
    "engine": "engine",
    "workload": "workload",
    "serving": "serving",
    "environment": "env",
}
"""Section of a cell's identity to the name that its settings have as params."""


@dataclass(frozen=True)
class CellFiles:
    """Params, tags and artifacts of a cell from ``cell.json``, ``outcome.json`` and ``raw/``.

    Parameters
    ----------
    params
        Host, model and seed, what ``facts.json`` tells of driver, kernel and CPU, and the
        settings of the cell's identity as ``setting/engine.<name>`` and so on, those of its
        environment as ``setting/env.<name>``; what is not known is None or left out.
    git
        Tags of the commit that measured it; empty where unknown.
    quote
        The line of a log that its outcome goes by.
    start_ms, end_ms
        Unix milliseconds.
    artifacts
        Outcome and identity, and what became of earlier attempts; never the raw logs.
    """

    start_ms: int
    end_ms: int
    launch: str | None = None
    quote: str = ""
    params: Mapping[str, Scalar] = field(default_factory=dict)
    git: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)


def read_cell_files(folder: Path, cell: str) -> CellFiles:
    """Read a cell's folder; a file that is not there says nothing.

    Raises
    ------
    UserError
        When ``cell.json`` or ``outcome.json`` is there and is no JSON object.
    """
    described, outcome = _object(folder / "cell.json"), _object(folder / "outcome.json")
    start_ms, end_ms = _times(folder, cell, outcome.get("measured_at"))
    git = described.get("git") or {}
    commit = git.get("commit")
    return CellFiles(
        start_ms,
        end_ms,
        launch=described.get("launch"),
        quote=outcome.get("quote") or "",
        params=_params(described.get("identity") or {}, folder / "raw"),
        git=commit_tags(str(commit), bool(git.get("is_dirty"))) if commit else {},
        artifacts=_artifacts(folder),
    )


def commit_tags(commit: str, is_dirty: bool) -> dict[str, str]:
    """Return the tags of a commit; the last one is what MLflow's own page shows."""
    return {
        "git_commit": commit,
        "git_dirty": str(is_dirty).lower(),
        "mlflow.source.git.commit": commit,
    }


def _object(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if data is None and path.is_file():
        raise UserError(f"{path} is not JSON, or holds no object")
    return data or {}


def _params(identity: Mapping[str, Any], raw: Path) -> dict[str, Scalar]:
    facts = read_json(raw / "facts.json") or {}
    drivers = {str(gpu.get("driver_version")) for gpu in facts.get("gpus") or []}
    settings = {
        f"setting/{name}.{key}": value
        for section, name in _SECTIONS.items()
        for key, value in (identity.get(section) or {}).items()
        if not isinstance(value, dict | list)
    }
    return {
        "host": (identity.get("host") or {}).get("name"),
        "model": (identity.get("model") or {}).get("name"),
        "driver": ", ".join(sorted(drivers)),
        **{name: facts.get(name) for name in _FACTS},
        "seed": identity.get("seed"),
        **settings,
    }


def _artifacts(folder: Path) -> dict[str, bytes]:
    earlier = sorted(folder.glob("attempts/*/outcome.json"))
    paths = [folder / "outcome.json", folder / "cell.json", *earlier]
    return {
        path.relative_to(folder).as_posix(): redact_text(path.read_text("utf-8")).encode()
        for path in paths
        if path.is_file() and path.stat().st_size <= _SMALL_BYTES
    }


def _times(folder: Path, cell: str, measured_at: str | None) -> tuple[int, int]:
    """Return start and end from the cell's events; without any, both when it was measured.

    A launch may hold several cells: events that name this one come first.
    """
    path = folder / "raw" / "events.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    phases = [line for line in lines if f'"{cell}"' in line and '"phase_' in line]
    times, ticks = [], []
    for line in phases or lines:
        try:
            event = json.loads(line)
            times.append(_milliseconds(event["time"]))
            # Events tell the time of day in whole seconds: this clock gives the length.
            ticks += [int(event["mono_ns"])] if "mono_ns" in event else []
        except (ValueError, TypeError, KeyError):
            # The last line of a killed agent may be cut; the cell's other lines still count.
            continue
    if not times:
        try:
            times = [_milliseconds(measured_at)]
        except (ValueError, TypeError):
            outcome = folder / "outcome.json"
            times = [int(outcome.stat().st_mtime * 1000) if outcome.is_file() else 0]
    length_ms = (max(ticks) - min(ticks)) // 1_000_000 if ticks else max(times) - min(times)
    return min(times), min(times) + length_ms


def _milliseconds(text: Any) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
