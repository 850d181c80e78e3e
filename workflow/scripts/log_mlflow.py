"""Log the study to MLflow; the only step that opens the store."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kvroad.files import write_json
from kvroad.publish.tracking import log_study
from kvroad.step import step


def log_mlflow(
    design: Path, study: Path, tables: Path, report: Path, marker: Path, say: Callable[[str], None]
) -> None:
    """Log, then leave the marker that says where to."""
    tracking = json.loads(study.read_text())["tracking"]
    summary = log_study(
        design_path=design,
        results_dir=Path("results"),
        tables_dir=tables,
        report_dir=report,
        uri=tracking["uri"],
        experiment=tracking["experiment"],
    )
    write_json(marker, asdict(summary))
    say(str(summary))


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        log_mlflow(
            design=Path(snakemake.input.design),
            study=Path(snakemake.input.design).with_name("study.json"),
            tables=Path(snakemake.input.cells).parent,
            report=Path(snakemake.input.page).parent,
            marker=Path(snakemake.output.marker),
            say=say,
        )
