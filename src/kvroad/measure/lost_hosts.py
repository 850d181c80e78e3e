"""Hosts of a study on several that failed in a run: they lose their blocks, the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, cast

from kvroad.files import read_json, utc_now, write_json

__all__ = ["LostHost", "lost_because", "lost_hosts", "note_lost"]


class LostHost(TypedDict):
    """Why a host failed, and when (UTC)."""

    host: str
    reason: str
    time: str


def note_lost(results_dir: Path, run_id: str, host: str, reason: str) -> None:
    """Keep for the rest of a run that a host failed; the first reason stays."""
    path = _path(results_dir, run_id, host)
    if not path.exists():
        write_json(path, LostHost(host=host, reason=reason, time=utc_now()))


def lost_because(results_dir: Path, run_id: str, host: str) -> str | None:
    """Return why a host failed in this run; None: it did not."""
    found = read_json(_path(results_dir, run_id, host))
    return None if found is None else f"{found['reason']} (at {found['time']})"


def lost_hosts(results_dir: Path, run_id: str) -> list[LostHost]:
    """Return what is known of each host that failed in this run."""
    found = map(read_json, sorted(_path(results_dir, run_id, "*").parent.glob("*.json")))
    return [cast("LostHost", record) for record in found if record is not None]


def _path(results_dir: Path, run_id: str, host: str) -> Path:
    return results_dir / "runs" / f"{run_id}-lost" / f"{host}.json"
