"""Snakemake itself: what of its command line reaches the Snakefile, and the job's own parse."""

import json
import os
import subprocess
import sys

SNAKEFILE = """
import json, sys
from kvroad.study.snakemake_words import check_command_line, snakemake_overrides
from kvroad.errors import UserError
try:
    check_command_line(sys.argv)
    overrides = snakemake_overrides(config, sys.argv)
except UserError as error:
    sys.exit(f"error: {error}")
config.clear()
config["hydra"] = overrides
with open("seen.jsonl", "a") as seen:
    seen.write(json.dumps(overrides) + "\\n")
rule all:
    input: "study=run", "script"
rule run:
    output: "study=run"
    run:
        open(output[0], "w").close()
rule script:
    output: "script"
    script: "script.py"
"""
SCRIPT = """
import dataclasses
import json
from kvroad.study.snakemake_words import snakemake_overrides
with open(snakemake.output[0], "w") as out:
    json.dump(snakemake_overrides(snakemake.config), out)
"""


def run(folder, *words):
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "all", *words]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_overrides_arrive_as_written_in_snakemake_in_its_jobs_and_in_scripts(tmp_path):
    written = ["session=010", "transport=[shm,roce]", 'hydra=engine.env.A="x  y" seed=2 +x="z"']
    done = run(tmp_path, "--config", *written)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    script = json.loads((tmp_path / "script").read_text())
    expected = ["session='010'", written[1], 'engine.env.A="x  y"', "seed=2", '+x="z"']
    assert seen == [expected, expected]
    assert script == expected


def test_an_override_without_config_is_one_line_and_a_failure(tmp_path):
    done = run(tmp_path, "transport=[roce]")
    assert done.returncode != 0
    assert "transport=[roce] is an override and needs --config before it" in done.stderr
    assert "Traceback" not in done.stderr
