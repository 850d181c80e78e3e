"""Where things lie below ``results/``, and which attempt a launch is at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, cast

from kvroad.files import read_json

__all__ = [
    "CellOutcome",
    "attempt_of",
    "cell_dir",
    "keep_attempt",
    "next_attempt",
    "outcome_of",
    "receipt_path",
]


class CellOutcome(TypedDict):
    """What ``outcome.json`` says of a cell: `kvroad.proof.witness.Outcome` as plain values."""

    outcome: str
    reason: str
    expected: list[str]
    seen: str
    where: str
    quote: str
    repeats: bool
    witnesses: list[dict[str, object]]
    attempt: int
    run_id: str
    measured_at: str


def cell_dir(results_dir: Path, cell: str) -> Path:
    """Return the folder of a cell."""
    return results_dir / "cells" / cell


def receipt_path(results_dir: Path, launch: str, attempt: int) -> Path:
    """Return the file that says that a launch was dealt with."""
    return results_dir / "launches" / launch / f"attempt-{attempt}.json"


def outcome_of(results_dir: Path, cell: str) -> CellOutcome | None:
    """Return a cell's outcome, or None while it has none."""
    return cast("CellOutcome | None", read_json(cell_dir(results_dir, cell) / "outcome.json"))


def attempt_of(results_dir: Path, cell: str) -> int:
    """Return the number of a cell's latest attempt; 0 while there is none."""
    outcome = outcome_of(results_dir, cell)
    return int(outcome["attempt"]) if outcome else 0


def next_attempt(results_dir: Path, cells: Iterable[str], retry: str) -> int:
    """Return the attempt that a launch is at.

    It is one more than the last where a cell of it is unproven and ``retry`` asks for
    another try, so that the launch's receipt has a name that does not exist yet.
    """
    latest = 1
    is_open = False
    for cell in cells:
        outcome = outcome_of(results_dir, cell)
        if outcome is None:
            continue
        latest = max(latest, int(outcome["attempt"]))
        is_open = is_open or outcome["outcome"] != "proven"
    return latest + 1 if is_open and retry == "unproven" else latest


def keep_attempt(results_dir: Path, cell: str) -> None:
    """Move an unproven attempt aside, under its number; nothing of it is deleted."""
    outcome = outcome_of(results_dir, cell)
    if outcome is None:
        return
    folder = cell_dir(results_dir, cell)
    target = folder / "attempts" / str(outcome["attempt"])
    target.mkdir(parents=True, exist_ok=True)
    # The outcome goes last: until then the attempt still counts as the current one.
    for name in ("raw", "cell.json", "outcome.json"):
        if (folder / name).exists():
            shutil.rmtree(target / name, ignore_errors=True)
            os.replace(folder / name, target / name)
