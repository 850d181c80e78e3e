"""Contrast the arms: ratios and differences with intervals."""

from pathlib import Path

from kvroad.analysis import stats
from kvroad.step import step

if __name__ == "__main__":
    with step(snakemake.log[0]):
        stats.build(
            cells_parquet=Path(snakemake.input.cells),
            design_path=Path(snakemake.input.design),
            out_dir=Path(snakemake.output.contrasts).parent,
        )
