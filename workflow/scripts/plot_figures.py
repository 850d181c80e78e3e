"""Draw the figures from what the tables hold."""

from pathlib import Path

from kvroad.publish import figures
from kvroad.step import step

if __name__ == "__main__":
    with step(snakemake.log[0]):
        figures.build(
            cells_parquet=Path(snakemake.input.cells),
            summary_parquet=Path(snakemake.input.summary),
            verdict_parquet=Path(snakemake.input.verdict),
            cost_dir=Path(snakemake.input.costs[0]).parent,
            design_path=Path(snakemake.input.design),
            out_dir=Path(snakemake.output.folder),
            manifest=Path(snakemake.output.manifest),
        )
