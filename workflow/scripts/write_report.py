"""Write the page, with the tables that it links to beside it."""

import shutil
from pathlib import Path

from kvroad.publish import page as report
from kvroad.step import step


def write_report(
    design: Path,
    cells: Path,
    witnesses: Path,
    provenance: Path,
    verdict: Path,
    claims: Path,
    costs: list[Path],
    study: Path,
    figures: Path,
    manifest: Path,
    linked: list[Path],
    out: Path,
) -> None:
    """Copy what is linked and write the page last."""
    shutil.copyfile(study, out.parent / "study.json")
    shutil.copyfile(cells.with_suffix(".csv"), out.parent / "cells.csv")
    cost_files = [out.parent / table.with_suffix(".csv").name for table in costs]
    for table, copy in zip(costs, cost_files, strict=True):
        shutil.copyfile(table.with_suffix(".csv"), copy)
    report.build(
        design_path=design,
        cells_parquet=cells,
        witnesses_parquet=witnesses,
        provenance_json=provenance,
        verdict_parquet=verdict,
        claims_parquet=claims,
        cost_dir=costs[0].parent,
        figures_dir=figures,
        manifest=manifest,
        downloads=[*linked, out.parent / "cells.csv", *cost_files, out.parent / "study.json"],
        out=out,
    )


if __name__ == "__main__":
    with step(snakemake.log[0]):
        write_report(
            design=Path(snakemake.input.design),
            cells=Path(snakemake.input.cells),
            witnesses=Path(snakemake.input.witnesses),
            provenance=Path(snakemake.input.provenance),
            verdict=Path(snakemake.input.verdict),
            claims=Path(snakemake.input.claims),
            costs=[Path(path) for path in snakemake.input.costs],
            study=Path(snakemake.input.study),
            figures=Path(snakemake.input.figures),
            manifest=Path(snakemake.input.manifest),
            linked=[
                Path(path)
                for path in [
                    *snakemake.input.verdict_files,
                    snakemake.input.claims_csv,
                ]
            ],
            out=Path(snakemake.output.page),
        )
