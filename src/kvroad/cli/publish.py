"""``kvroad publish``."""

from __future__ import annotations

import argparse
import shlex

from kvroad.cli.status import DONE, REPORTS, RESULTS, study_of
from kvroad.publish.archive import publish
from kvroad.publish.page import command_line
from kvroad.study.design import make_design

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Copy the report of a study to the published ones, with its raw files."""
    study = study_of(arguments.overrides)
    archive = publish(study, make_design(study), RESULTS, REPORTS)
    folder, raw = shlex.quote(str(archive.parent)), shlex.quote(str(archive))
    print(f"{archive}: {archive.stat().st_size} bytes. Commit it: git add {folder}")
    print(
        f"Anyone makes the same report from it: tar -xJf {raw} && {command_line(study.overrides)}"
    )
    return DONE
