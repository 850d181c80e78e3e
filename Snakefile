"""kvroad: the transport × prompt-length matrix, from configuration to verdict."""

import os
import sys
import uuid
from contextlib import closing
from pathlib import Path

from snakemake.utils import min_version

from kvroad.results import next_attempt, receipt_path
from kvroad.study.snakemake_words import check_command_line, snakemake_overrides
from kvroad.study.compose import compose
from kvroad.study.design import design_facts, make_design
from kvroad.errors import UserError
from kvroad.measure.interrupts import forward_to_jobs, name_runner
from kvroad.measure.preflight import check_hosts
from kvroad.publish.tracking.marker import drop_stale_marker, tracking_uri
from kvroad.step import module_digest
from kvroad.study.kinds import CONNECTIONS
from kvroad.study.sides import hosts_of, is_split
from kvroad.study.name import resolved, study_slug
from kvroad.study.file import STUDY_VARIABLE, study_path, write_study

min_version("9.27")

try:
    check_command_line(sys.argv)
    # Snakemake types and trims what follows --config; the command line still has the text.
    OVERRIDES = snakemake_overrides(config, sys.argv)
    STUDY = compose(OVERRIDES, Path(workflow.basedir) / "conf")
    DESIGN = make_design(STUDY)
except UserError as error:
    sys.exit(f"error: {error}")

# The scripts compose the same study from the same words.
config.clear()
config["hydra"] = OVERRIDES
# One uninterrupted run of the workflow; the measuring jobs inherit it.
os.environ.setdefault("KVROAD_RUN_ID", uuid.uuid4().hex)
name_runner()
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")


include: "workflow/rules/common.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/publish.smk"


# With --profile profiles/slurm these are not worth a job, and a failing gate must not take
# the report with it.
localrules:
    write_design,
    log_mlflow,
    gate,


rule all:
    default_target: True
    input:
        rules.write_report.output,
        rules.log_mlflow.output,
        rules.gate.output,


onstart:
    forward_to_jobs()
    # So that no job has to compose it again.
    write_study(STUDY, STUDY_FILE)
    # Before any job, and only the hosts on which something is left to measure.
    try:
        check_hosts(
            STUDY,
            DESIGN,
            RESULTS,
            run_id=os.environ["KVROAD_RUN_ID"],
            names={
                launch.host
                for launch, receipt in zip(DESIGN.launches, RECEIPTS, strict=True)
                if not receipt.exists()
            },
            say=lambda line: print(line, file=sys.stderr),
        )
    except UserError as error:
        sys.exit(f"error: {error}")
