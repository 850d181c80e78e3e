import json
from pathlib import Path

import pytest

from kvroad.files import write_json
from kvroad.results import (
    attempt_of,
    cell_dir,
    keep_attempt,
    next_attempt,
    outcome_of,
    receipt_path,
)


def settle(results: Path, cell: str, outcome: str, attempt: int) -> None:
    folder = cell_dir(results, cell)
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "raw" / "plan.json").write_text(f"{attempt}")
    write_json(folder / "cell.json", {"attempt": attempt})
    write_json(folder / "outcome.json", {"outcome": outcome, "attempt": attempt})


@pytest.mark.parametrize(
    ("outcomes", "retry", "expected"),
    [
        ([], "unproven", 1),
        ([("proven", 1)], "unproven", 1),
        ([("refused", 1)], "unproven", 2),
        ([("failed", 3)], "unproven", 4),
        ([("refused", 1)], "none", 1),
        ([("proven", 2), ("refused", 1)], "unproven", 3),
        ([("proven", 2), None], "unproven", 2),
    ],
)
def test_the_attempt_moves_on_while_a_cell_is_unproven(
    tmp_path: Path, outcomes: list[tuple[str, int] | None], retry: str, expected: int
) -> None:
    cells = [f"c{i}" for i in range(len(outcomes))]
    for cell, outcome in zip(cells, outcomes, strict=True):
        if outcome:
            settle(tmp_path, cell, *outcome)
    assert next_attempt(tmp_path, cells, retry) == expected


def test_an_attempt_is_moved_aside_whole(tmp_path: Path) -> None:
    settle(tmp_path, "c", "refused", 1)
    keep_attempt(tmp_path, "c")
    assert outcome_of(tmp_path, "c") is None
    kept = cell_dir(tmp_path, "c") / "attempts" / "1"
    assert json.loads((kept / "outcome.json").read_text())["outcome"] == "refused"
    assert (kept / "raw" / "plan.json").read_text() == "1"
    settle(tmp_path, "c", "failed", 2)
    keep_attempt(tmp_path, "c")
    assert sorted(p.name for p in kept.parent.iterdir()) == ["1", "2"]


def test_nothing_is_kept_of_a_cell_without_an_outcome(tmp_path: Path) -> None:
    keep_attempt(tmp_path, "c")
    assert not cell_dir(tmp_path, "c").exists()
    assert attempt_of(tmp_path, "c") == 0


def test_a_torn_outcome_counts_as_none(tmp_path: Path) -> None:
    cell_dir(tmp_path, "c").mkdir(parents=True)
    (cell_dir(tmp_path, "c") / "outcome.json").write_text('{"outcome": ')
    assert outcome_of(tmp_path, "c") is None


def test_receipts_are_named_by_launch_and_attempt(tmp_path: Path) -> None:
    assert receipt_path(tmp_path, "l", 2) == tmp_path / "launches/l/attempt-2.json"
