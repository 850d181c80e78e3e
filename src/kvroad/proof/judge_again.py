"""Judge measured cells again from their raw files, with the tolerances of today."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from kvroad.agent.manifest import MANIFEST
from kvroad.files import write_json
from kvroad.proof.judge import judge_cell
from kvroad.results import cell_dir, outcome_of
from kvroad.study.fields import RoadTolerances

__all__ = ["judge_again"]

# What the judgement does not decide: when and in which run a cell was measured.
_KEPT = ("attempt", "run_id", "measured_at")


def judge_again(
    cells: Iterable[str],
    results_dir: Path,
    tolerances: RoadTolerances,
    say: Callable[[str], None],
) -> None:
    """Rewrite the outcome of each cell whose raw files say something else than before.

    Cells without raw files (never measured, or not launched because another launch had
    shown what would come) keep the outcome that they have.
    """
    for cell in cells:
        before = outcome_of(results_dir, cell)
        folder = cell_dir(results_dir, cell)
        if before is None or not (folder / "raw" / MANIFEST).exists():
            continue
        # As it would be read back: an outcome and its witnesses as plain objects.
        judged = json.loads(json.dumps(judge_cell(folder, tolerances), default=vars))
        after = {**judged, **{k: v for k, v in before.items() if k in _KEPT}}
        if after != before:
            write_json(folder / "outcome.json", after)
        if after["outcome"] != before["outcome"]:
            say(f"{cell}: {before['outcome']} is now {after['outcome']}: {after['reason']}")
