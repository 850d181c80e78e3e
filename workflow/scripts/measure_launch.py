"""Measure the cells of one launch that are not proven yet."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvroad.compose import compose, snakemake_overrides
from kvroad.design import make_design
from kvroad.hosts import open_host
from kvroad.hosts.slurm import job_id, placed
from kvroad.interrupts import stop_in_order
from kvroad.measure import Measurement, measure_launch
from kvroad.preflight import check_once
from kvroad.steps import step


def measure(
    config: dict[str, object],
    conf_dir: Path,
    launch: str,
    attempt: int,
    say: Callable[[str], None],
) -> None:
    """Open the host, run the launch, leave the receipt."""
    stop_in_order()
    study = compose(snakemake_overrides(config), conf_dir)
    if study.host.connection == "slurm":
        study = replace(study, host=placed(study.host))
    with contextlib.closing(open_host(study.host)) as host:
        measurement = Measurement(
            study=study,
            design=make_design(study),
            host=host,
            results_dir=Path("results"),
            run_id=os.environ["KVROAD_RUN_ID"],
            source_dir=conf_dir.parent,
            say=say,
        )
        if study.host.connection == "slurm":
            # Only now is it known which node it is.
            name = f"{measurement.run_id}-job-{job_id(study.host)}.json"
            done = measurement.results_dir / "runs" / name
            check_once(study, measurement.design, host, measurement.results_dir, done, say)
        measure_launch(measurement, launch, attempt)


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        measure(
            config=snakemake.config,
            conf_dir=Path(snakemake.scriptdir).resolve().parents[1] / "conf",
            launch=snakemake.wildcards.launch,
            attempt=int(snakemake.wildcards.attempt),
            say=say,
        )
