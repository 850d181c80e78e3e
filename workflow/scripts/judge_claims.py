"""Hold published claims against what was measured."""

from pathlib import Path

from kvroad.analysis.verdict import claims
from kvroad.step import step

if __name__ == "__main__":
    with step(snakemake.log[0]):
        claims.build(
            verdict_parquet=Path(snakemake.input.verdict),
            cells_parquet=Path(snakemake.input.cells),
            cost_dir=Path(snakemake.input.costs[0]).parent,
            design_path=Path(snakemake.input.design),
            out_dir=Path(snakemake.output.csv).parent,
        )
