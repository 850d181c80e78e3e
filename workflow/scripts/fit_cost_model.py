"""Fit what a pull's time is made of."""

from pathlib import Path

from kvroad.analysis import cost_model
from kvroad.step import step

if __name__ == "__main__":
    with step(snakemake.log[0]):
        cost_model.build(
            cells_parquet=Path(snakemake.input.cells),
            design_path=Path(snakemake.input.design),
            out_dir=Path(snakemake.output.tables[0]).parent,
        )
