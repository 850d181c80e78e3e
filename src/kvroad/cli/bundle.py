"""``kvroad bundle``."""

from __future__ import annotations

import argparse

from kvroad.cli.status import DONE, RESULTS, study_of
from kvroad.measure.by_hand import write_bundle
from kvroad.study.design import make_design

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Write one file that runs the missing launches on a host without SSH."""
    study = study_of(arguments.overrides)
    design = make_design(study)
    n = write_bundle(study, design, RESULTS, arguments.overrides, arguments.output)
    print(
        f"{arguments.output}: {n} launches; on the host, with Python 3.10 or newer and NIXL: "
        f"python3 {arguments.output.name} OUTPUT_DIR"
    )
    return DONE
