"""``kvroad publish``."""

from __future__ import annotations

import argparse

from kvroad.cli.status import DONE, REPORTS, RESULTS, study_of
from kvroad.publish.archive import publish
from kvroad.study.design import make_design

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Put the raw files of a study beside its report."""
    study = study_of(arguments.overrides)
    archive = publish(study, make_design(study), RESULTS, REPORTS)
    words = " ".join(
        f"'{word}'" if set("[]{}*?$ ") & set(word) else word for word in study.overrides
    )
    print(f"{archive}: {archive.stat().st_size} bytes. Commit it: git add -f {archive.parent}")
    print(
        f"Anyone makes the same report from it: tar -xJf {archive} && "
        f"uv run snakemake --cores 1 all --config {words}"
    )
    return DONE
