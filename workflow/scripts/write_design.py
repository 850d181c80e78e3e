"""Write what was asked for beside its results: the design and the resolved study."""

from pathlib import Path
from typing import Any

from kvroad.files import write_json
from kvroad.step import step


def write_design(
    design: dict[str, Any], study: dict[str, Any], design_out: Path, study_out: Path
) -> None:
    """Write both as JSON."""
    write_json(design_out, design)
    write_json(study_out, study)


if __name__ == "__main__":
    with step(snakemake.log[0]):
        write_design(
            design=snakemake.params.design,
            study=snakemake.params.study,
            design_out=Path(snakemake.output.design),
            study_out=Path(snakemake.output.study),
        )
