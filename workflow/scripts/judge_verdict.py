"""Put each contrast into a word, and the words into the verdict's files."""

from pathlib import Path

from kvroad.analysis import verdict
from kvroad.step import step

if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        verdict.build(
            contrasts_parquet=Path(snakemake.input.contrasts),
            cells_parquet=Path(snakemake.input.cells),
            design_path=Path(snakemake.input.design),
            out_dir=Path(snakemake.output.csv).parent,
        )
