"""Fail while any planned cell is not proven."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from kvroad.cells import write_json
from kvroad.errors import UserError
from kvroad.steps import step


def gate(cells: Path, page: Path, passed: Path, say: Callable[[str], None]) -> None:
    """Write ``passed``, or raise UserError with the number of unproven cells and one reason."""
    frame = pd.read_parquet(cells)
    unproven = frame[frame["outcome"] != "proven"]
    verdict = page.with_name("verdict.md")
    if len(unproven):
        first = unproven.iloc[0]
        raise UserError(
            f"{len(unproven)} of {len(frame)} cells are not proven; {first['cell']}: "
            f"{first['outcome']}: {first['reason'] or 'no reason given'}; see {page}"
        )
    write_json(passed, {"cells": len(frame), "proven": len(frame)})
    say(f"every one of {len(frame)} cells is proven; the verdict: {verdict}, the page: {page}")


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        gate(
            cells=Path(snakemake.input.cells),
            page=Path(snakemake.input.page),
            passed=Path(snakemake.output.passed),
            say=say,
        )
