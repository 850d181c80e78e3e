"""Real NIXL in every form the replay has; minutes, so for the nightly run."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]


def cells_of(checkout) -> pd.DataFrame:
    tables = list((checkout.path / "results/studies").iterdir())
    assert len(tables) == 1
    return pd.read_parquet(tables[0] / "cells.parquet")


def pulls_of(checkout) -> list[dict[str, object]]:
    files = checkout.path.glob("results/cells/*/raw/pulls-*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_every_variant_proves_its_road(make_checkout) -> None:
    checkout = make_checkout()
    checkout.snakemake(
        "all",
        "--config",
        "study=smoke",
        "prompt_tokens=[4096]",
        "variant=[blocks,push,fragmented,threads0]",
        check=True,
    )
    cells = cells_of(checkout)
    assert list(cells["outcome"]) == ["proven"] * 16
    for row in pulls_of(checkout):
        assert row["descriptors_moved"] == row["descriptors_planned"] == 2340
        assert row["verified"] is not False
    operations = {(row["cell"].split("-p")[0], row["operation"]) for row in pulls_of(checkout)}
    assert ("shm+push", "write") in operations
    assert ("tcp", "read") in operations


def test_ranks_pull_together_and_cells_share_a_launch(make_checkout) -> None:
    checkout = make_checkout()
    checkout.snakemake(
        "all",
        "--config",
        "study=smoke",
        "hydra=engine.rank_pairs=2 engine.cells_per_launch=all",
        check=True,
    )
    cells = cells_of(checkout)
    assert list(cells["outcome"]) == ["proven"] * 8
    assert cells["launch"].nunique() == 4
    rows = pulls_of(checkout)
    assert {row["rank"] for row in rows} == {0, 1}
    alone = pd.DataFrame(row for row in rows if row["phase"] == "one_at_a_time")
    alone["end_mono_ns"] = alone["start_mono_ns"] + alone["wall_us"] * 1000
    # A barrier lets both ranks post each pull together: neither is ahead of the other's end.
    for _, pulls in alone.groupby("cell"):
        rounds = pulls.groupby("pull").agg({"start_mono_ns": "min", "end_mono_ns": "max"})
        begun, ended = rounds["start_mono_ns"].to_numpy(), rounds["end_mono_ns"].to_numpy()
        assert len(rounds) > 1
        assert (begun[1:] >= ended[:-1]).all()


def test_nixl_1_3_1_without_torch(make_checkout, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    subprocess.run(["uv", "venv", "-q", "-p", sys.executable, str(tmp_path / "venv")], check=True)
    install = ["uv", "pip", "install", "-q", "--python", str(python), "--no-deps"]
    subprocess.run([*install, "nixl-cu12==1.3.1", "numpy"], check=True)
    checkout = make_checkout()
    checkout.snakemake(
        "all",
        "--config",
        "study=smoke",
        "prompt_tokens=[4096]",
        f"hydra=engine.nixl_version=1.3.1 host.python={python}",
        check=True,
    )
    cells = cells_of(checkout)
    assert list(cells["outcome"]) == ["proven"] * 4
    assert set(cells["nixl_version"]) == {"1.3.1"}
    assert set(cells["ucx_version"]) == {"1.21.0"}


def test_counters_of_another_road_refuse_tcp_claimed_for_shared_memory(make_checkout) -> None:
    checkout = make_checkout()
    done = checkout.snakemake(
        "all",
        "--config",
        "study=smoke",
        "transport=[tcp]",
        "prompt_tokens=[256]",
        "hydra=transport.tcp.ucx_tls=[tcp,cma]",
    )
    assert done.returncode != 0
    cells = cells_of(checkout)
    assert set(cells["outcome"]) == {"refused"}
    assert set(cells["road_seen"]) == {"cma"}
