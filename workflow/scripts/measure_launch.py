"""Measure the cells of one launch that are not proven yet: LAUNCH ATTEMPT LOG.

Started by itself, not as a `script:`, which would import Snakemake in front of every launch.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from kvroad.measure.interrupts import stop_in_order
from kvroad.measure.launch import measure_on_host
from kvroad.measure.measuring_run import MeasuringRun
from kvroad.step import step
from kvroad.study.design import make_design
from kvroad.study.file import STUDY_VARIABLE, read_study
from kvroad.study.sides import on_host


def measure(launch: str, attempt: int, say: Callable[[str], None]) -> None:
    """Open the host of the launch, run it, leave the receipt."""
    stop_in_order()
    study = read_study(Path(os.environ[STUDY_VARIABLE]))
    design = make_design(study)
    run = MeasuringRun(
        study=on_host(study, design.launch(launch).host),
        design=design,
        host=None,
        results_dir=Path("results"),
        run_id=os.environ["KVROAD_RUN_ID"],
        source_dir=Path(__file__).resolve().parents[2],
        say=say,
    )
    measure_on_host(run, launch, attempt, is_one_of_several=bool(study.hosts))


if __name__ == "__main__":
    launch, attempt, log = sys.argv[1:]
    with step(log) as say:
        measure(launch, int(attempt), say)
