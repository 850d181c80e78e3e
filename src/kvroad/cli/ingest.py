"""``kvroad ingest``."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path

from kvroad.cli.status import DONE, FAILED, RESULTS, study_of
from kvroad.measure.by_hand import ingest
from kvroad.measure.measuring_run import MeasuringRun
from kvroad.study.design import make_design

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Take in the raw folders that a bundle made."""
    study = study_of(arguments.overrides)
    measuring = MeasuringRun(
        study=study,
        design=make_design(study),
        host=None,
        results_dir=RESULTS,
        run_id=uuid.uuid4().hex,
        source_dir=Path.cwd(),
        say=print,
    )
    n_taken, n_refused = ingest(measuring, arguments.folder, print)
    print(f"{n_taken} raw folders taken in, {n_refused} refused")
    return FAILED if n_refused else DONE
