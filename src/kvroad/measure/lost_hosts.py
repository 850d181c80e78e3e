"""Hosts of a study on several that failed in a run: they lose their blocks, the others go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kvroad.files import read_json, write_json

__all__ = ["lost_because", "lost_hosts", "note_lost"]


def note_lost(results_dir: Path, run_id: str, host: str, reason: str) -> None:
    """Keep for the rest of a run that a host failed; the first reason stays."""
    path = _path(results_dir, run_id, host)
    if not path.exists():
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(path, {"host": host, "reason": reason, "time": now})


def lost_because(results_dir: Path, run_id: str, host: str) -> str | None:
    """Return why a host failed in this run; None: it did not."""
    found = read_json(_path(results_dir, run_id, host))
    return None if found is None else f"{found['reason']} (at {found['time']})"


def lost_hosts(results_dir: Path, run_id: str) -> list[dict[str, Any]]:
    """Return what is known of each host that failed in this run."""
    found = map(read_json, sorted(_path(results_dir, run_id, "*").parent.glob("*.json")))
    return [told for told in found if told is not None]


def _path(results_dir: Path, run_id: str, host: str) -> Path:
    return results_dir / "runs" / f"{run_id}-lost" / f"{host}.json"
