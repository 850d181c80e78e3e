"""Studies through profiles/slurm on a real Slurm, whose nodes are all this machine."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import slurm

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]

# Without accounting Slurm is asked with squeue; the waits are those of the plugin.
PROFILE = [
    *("--profile", "profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "1"),
    *("--seconds-between-status-checks", "1"),
]
ON_LOOPBACK = "host.interfaces=[lo] host.env.UCX_NET_DEVICES=lo"
ROW = ["arm", "baseline", "prompt_tokens", "metric"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.running(["node1", "node2"]) as running:
        yield running


def run(checkout, cluster, *config: str, hydra: str = "") -> "subprocess.CompletedProcess[str]":
    words = ["all", *PROFILE, "--config", *config, f"hydra={ON_LOOPBACK} {hydra}".strip()]
    return checkout.snakemake(*words, **cluster.environment())


def only(paths: Iterator[Path]) -> Path:
    (path,) = paths
    return path


def test_the_smoke_study_gives_the_same_rows_as_without_slurm(
    cluster, make_checkout, measured
) -> None:
    checkout = make_checkout()
    # One node, so that no block runs beside the other: they would hear each other on loopback.
    node = "host=slurm"
    subprocess.run(
        ["scontrol", "update", "nodename=node2", "state=drain", "reason=test"],
        env=cluster.environment(),
        check=True,
    )
    try:
        done = run(checkout, cluster, "study=smoke", node)
    finally:
        subprocess.run(
            ["scontrol", "update", "nodename=node2", "state=resume"],
            env=cluster.environment(),
            check=True,
        )
    logs = "\n".join(
        p.read_text(errors="replace") for p in checkout.path.glob("results/logs/launches/*")
    )
    assert done.returncode == 0, done.stderr + logs
    assert "every one of 8 cells is proven" in done.stderr
    rows = pd.read_csv(only(checkout.path.glob("reports/*/verdict.csv")))
    local = pd.read_csv(measured.path / "reports/smoke/verdict.csv")
    assert rows[ROW].to_records(index=False).tolist() == local[ROW].to_records(index=False).tolist()
    # Launches of a block were one job on one node, one after the other: they are pairs.
    tables = only(checkout.path.glob("results/studies/*"))
    assert pd.read_parquet(tables / "contrasts.parquet")["is_interleaved"].all()
    cells = pd.read_parquet(tables / "cells.parquet")
    assert cells["run_id"].nunique() == 1
    planned = json.loads((tables / "design.json").read_text())["cells"]
    for block in (0, 1):
        own = cells[cells["block"] == block].sort_values("executed_order")
        assert list(own["cell"]) == [c["cell"] for c in planned if c["block"] == block]
        assert own["executed_order"].max() - own["executed_order"].min() == 3
    # Two jobs for the blocks, each of which checked its node once.
    assert len(list(checkout.path.glob("results/runs/*-job-*.json"))) == 2
    assert cluster.queue() == []
    assert list(checkout.home.glob(".kvroad/node1/ledger/*")) == []
    again = run(checkout, cluster, "study=smoke", node)
    assert "Nothing to be done" in again.stdout + again.stderr


def test_prefill_and_decode_on_two_nodes_of_one_allocation(cluster, make_checkout) -> None:
    checkout = make_checkout()
    done = run(
        checkout,
        cluster,
        *("study=smoke", "host=slurm", "transport=[tcp]", "prompt_tokens=[256]"),
        hydra="host.prefill.name=slurm-prefill host.decode.name=slurm-decode",
    )
    logs = "\n".join(p.read_text() for p in checkout.path.glob("results/logs/launches/*"))
    assert done.returncode == 0, done.stderr + logs
    assert "every one of 2 cells is proven" in done.stderr
    assert {p.parent.name for p in checkout.path.glob("results/hosts/*/preflight.json")} == {
        "slurm-prefill",
        "slurm-decode",
    }
    # Each half had an agent of its own, on its node.
    assert {p.name for p in checkout.home.glob(".kvroad/node*")} == {"node1", "node2"}
    for raw in checkout.path.glob("results/cells/*/raw"):
        assert json.loads((raw / "plan.json").read_text())["claim"]["side"] == "decode"
        assert json.loads((raw / "prefill.plan.json").read_text())["claim"]["side"] == "prefill"


def test_without_a_job_there_is_one_line_and_nothing_is_run(cluster, make_checkout) -> None:
    checkout = make_checkout()
    done = checkout.snakemake(
        *("all", "--config", "study=smoke", "host=slurm", "prompt_tokens=[256]")
    )
    assert done.returncode != 0
    assert "this is no Slurm job: give Snakemake '--profile profiles/slurm'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout.path / "results/cells").exists()
