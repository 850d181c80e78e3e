"""What a launch is measured with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvroad.hosts import RunningHost
from kvroad.study.design import Cell, Design
from kvroad.study.fields import Study

__all__ = ["MeasuringRun", "cell_name"]


@dataclass(frozen=True)
class MeasuringRun:
    """What a launch is measured with.

    Parameters
    ----------
    host
        None where raw folders come from a host that only a person reaches.
    run_id
        One uninterrupted run of the workflow; pairs are built within one only.
    source_dir
        The checkout, whose git commit goes into each cell.
    say
        Takes a line of progress.
    """

    study: Study
    design: Design
    host: RunningHost | None
    results_dir: Path
    run_id: str
    source_dir: Path
    say: Callable[[str], None]


def cell_name(run: MeasuringRun, cell: Cell) -> str:
    """Return a cell's number and name, as progress lines begin."""
    cells = run.design.cells
    number = next(i for i, c in enumerate(cells, 1) if c.id == cell.id)
    where = f" on {cell.host}" if len({c.host for c in cells}) > 1 else ""
    return (
        f"[{number}/{len(cells)}] {cell.arm} {cell.prompt_tokens} tokens, block {cell.block}{where}"
    )
