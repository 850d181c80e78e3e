"""Turn cell folders into the tables of pulls, cells and witnesses."""

import json
from collections.abc import Callable
from pathlib import Path

from kvroad.analysis import tables
from kvroad.proof.judge_again import judge_again
from kvroad.step import step
from kvroad.study.fields import RoadTolerances


def tabulate_cells(
    design: Path,
    results_dir: Path,
    out_dir: Path,
    tolerances: dict[str, float],
    say: Callable[[str], None],
) -> None:
    """Judge the roads with today's tolerances, then write the tables."""
    cells = [cell["cell"] for cell in json.loads(design.read_text())["cells"]]
    judge_again(cells, results_dir, RoadTolerances(**tolerances), say)
    tables.build(design_path=design, results_dir=results_dir, out_dir=out_dir)


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        tabulate_cells(
            design=Path(snakemake.input.design),
            results_dir=Path("results"),
            out_dir=Path(snakemake.output.cells).parent,
            tolerances=snakemake.params.tolerances,
            say=say,
        )
