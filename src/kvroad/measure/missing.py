"""Which launches of a study are still to be made."""

from __future__ import annotations

from pathlib import Path

from kvroad.results import CellOutcome, next_attempt, outcome_of, receipt_path
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study

__all__ = ["is_open", "missing_launches"]


def missing_launches(
    study: Study, design: Design, results_dir: Path
) -> list[tuple[Launch, list[Cell]]]:
    """Return the launches that the workflow would run now, each with its open cells."""
    found = []
    for launch in design.launches:
        attempt = next_attempt(results_dir, [c.id for c in launch.cells], study.retry)
        if receipt_path(results_dir, launch.id, attempt).exists():
            continue
        outcomes = [(cell, outcome_of(results_dir, cell.id)) for cell in launch.cells]
        cells = [cell for cell, outcome in outcomes if is_open(outcome)]
        if cells:
            found.append((launch, cells))
    return found


def is_open(outcome: CellOutcome | None) -> bool:
    """Return whether a cell is still to be measured: without an outcome, or not proven."""
    return outcome is None or outcome["outcome"] != "proven"
