"""Measure the cells of one launch that are not proven yet."""

import os
from collections.abc import Callable
from pathlib import Path

from kvroad.command_line import snakemake_overrides
from kvroad.design import make_design
from kvroad.interrupts import stop_in_order
from kvroad.measure import Measurement, measure_on_host
from kvroad.steps import step
from kvroad.study import on_host
from kvroad.study_file import read_study, study_path


def measure(
    config: dict[str, object],
    conf_dir: Path,
    launch: str,
    attempt: int,
    say: Callable[[str], None],
) -> None:
    """Open the host of the launch, run it, leave the receipt."""
    stop_in_order()
    overrides, run_id = snakemake_overrides(config), os.environ["KVROAD_RUN_ID"]
    study = read_study(study_path(Path("results"), run_id, overrides))
    if study is None:
        # Hydra takes as long as all of the rest of this script.
        from kvroad.compose import compose

        study = compose(overrides, conf_dir)
    design = make_design(study)
    measurement = Measurement(
        study=on_host(study, design.launch(launch).host),
        design=design,
        host=None,
        results_dir=Path("results"),
        run_id=run_id,
        source_dir=conf_dir.parent,
        say=say,
    )
    measure_on_host(measurement, launch, attempt, is_one_of_several=bool(study.hosts))


if __name__ == "__main__":
    with step(snakemake.log[0]) as say:
        measure(
            config=snakemake.config,
            conf_dir=Path(snakemake.scriptdir).resolve().parents[1] / "conf",
            launch=snakemake.wildcards.launch,
            attempt=int(snakemake.wildcards.attempt),
            say=say,
        )
