"""Fail while any planned cell is not proven."""

import csv
from collections.abc import Callable
from pathlib import Path

from kvroad.errors import UserError
from kvroad.files import write_json
from kvroad.step import step


def gate(cells: Path, page: Path, passed: Path, say: Callable[[str], None]) -> None:
    """Write ``passed``, or raise UserError with the number of unproven cells and one reason."""
    with open(cells, newline="") as file:
        rows = list(csv.DictReader(file))
    unproven = [row for row in rows if row["outcome"] != "proven"]
    if unproven:
        first = unproven[0]
        raise UserError(
            f"{len(unproven)} of {len(rows)} cells are not proven; {first['cell']}: "
            f"{first['outcome']}: {first['reason'] or 'no reason given'}; see {page}"
        )
    write_json(passed, {"cells": len(rows), "proven": len(rows)})
    verdict = page.with_name("verdict.md")
    say(f"every one of {len(rows)} cells is proven; the verdict: {verdict}, the page: {page}")


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        gate(
            cells=Path(snakemake.input.cells),
            page=Path(snakemake.input.page),
            passed=Path(snakemake.output.passed),
            say=say,
        )
