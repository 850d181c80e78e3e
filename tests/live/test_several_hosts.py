"""A study on two SSH hosts at once: blocks kept whole, and a host that fails half-way."""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]
HOSTS = ("node1", "node2")
STUDY = ["study=smoke", "host=[node1,node2]", "launches=8", "prompt_tokens=[256]"]
TABLES = "results/studies/smoke+host=[node1,node2]+launches=8+prompt_tokens=[256]"


@pytest.fixture(scope="module")
def servers(make_sshd):
    return dict(zip(HOSTS, (make_sshd(), make_sshd()), strict=True))


@pytest.fixture
def checkout(make_checkout, servers):
    """Return a checkout with a file for each of the two hosts."""
    made = make_checkout()
    (made.home / ".ssh").mkdir()
    shutil.copy(servers["node1"].account.known_hosts, made.home / ".ssh/known_hosts")
    for name, sshd in servers.items():
        lines = [
            *("defaults:", "  - ssh", "  - _self_", ""),
            *(f"name: {name}", "address: 127.0.0.1", f"port: {sshd.port}"),
            f"identity_file: {sshd.account.key}",
            f"python: {sys.executable}",
            f"work_dir: {sshd.work_dir}",
            *("strict: false", "connect_timeout_s: 60", "lease_s: 60"),
            # Both are this machine, whose loopback counts the traffic of both: no witness.
            "interfaces: []",
            *("env:", "  UCX_NET_DEVICES: lo"),
        ]
        (made.path / "conf/host" / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return made


def times_of(cells: Path) -> pd.DataFrame:
    """Return host, block, first and last event of each cell."""
    rows = []
    for folder in sorted(cells.iterdir()):
        facts = json.loads((folder / "cell.json").read_text())
        if not (folder / "raw").exists():
            continue
        events = [json.loads(x) for x in (folder / "raw/events.jsonl").read_text().splitlines()]
        stamps = [event["mono_ns"] for event in events]
        host = facts["identity"]["host"]["name"]
        rows.append((host, facts["block"], facts["arm"], min(stamps), max(stamps)))
    return pd.DataFrame(rows, columns=["host", "block", "arm", "start", "end"])


def test_both_hosts_measure_at_once_one_launch_each_and_blocks_stay_whole(
    checkout, servers
) -> None:
    done = checkout.snakemake("--cores", "2", "all", "--config", *STUDY, check=True)
    assert "every one of 16 cells is proven" in done.stderr
    cells = pd.read_parquet(checkout.path / TABLES / "cells.parquet")
    assert set(zip(cells["block"], cells["host"], strict=True)) == {
        (block, HOSTS[block % 2]) for block in range(8)
    }
    contrasts = pd.read_parquet(checkout.path / TABLES / "contrasts.parquet")
    assert set(contrasts["n_pairs"]) == {8}
    assert set(contrasts["hosts"]) == {"node1 4, node2 4"}
    assert contrasts["is_interleaved"].all()

    times = times_of(checkout.path / "results/cells")
    at_once = 0
    for _, own in times.groupby("host"):
        own = own.sort_values("start")
        assert (own["start"].iloc[1:].to_numpy() >= own["end"].iloc[:-1].to_numpy()).all()
        # A block is over before the next one begins.
        assert own["block"].is_monotonic_increasing
        others = times[times["host"] != own["host"].iloc[0]]
        at_once += sum(
            ((others["start"] < row.end) & (others["end"] > row.start)).any()
            for row in own.itertuples()
        )
    assert at_once > 0
    for sshd in servers.values():
        assert list((sshd.node_dir / "launches").iterdir()) == []
    again = checkout.snakemake("--cores", "2", "all", "--config", *STUDY, check=True)
    assert "Nothing to be done" in again.stdout + again.stderr


def test_a_host_that_fails_loses_its_unfinished_blocks_and_the_other_goes_on(
    checkout, servers
) -> None:
    lost = servers["node2"]
    with checkout.start("--cores", "2", "all", "--config", *STUDY) as process:

        def is_block_measured() -> bool:
            assert process.poll() is None, process.stderr.read()
            return len(list(checkout.path.glob("results/cells/*-b1-*/outcome.json"))) == 2

        wait_until(is_block_measured, "the first block of node2")
        lost.stop()
        _, errors = process.communicate(timeout=600)
    assert process.returncode != 0
    said = [line for line in errors.splitlines() if line.startswith("host node2 failed and is")]
    assert len(said) == 1, errors
    assert "Traceback" not in errors

    cells = pd.read_parquet(checkout.path / TABLES / "cells.parquet").set_index("cell")
    on = {host: cells[cells["host"] == host] for host in HOSTS}
    assert set(on["node1"]["outcome"]) == {"proven"}
    failed = on["node2"][on["node2"]["outcome"] != "proven"]
    assert set(failed["outcome"]) == {"failed"}
    assert set(failed["block"]) >= {5, 7}
    assert failed["reason"].str.startswith("host node2 failed, its unfinished blocks").all()
    assert set(on["node2"][on["node2"]["block"] == 1]["outcome"]) == {"proven"}

    contrasts = pd.read_parquet(checkout.path / TABLES / "contrasts.parquet")
    whole = on["node2"].groupby("block")["outcome"].apply(lambda o: (o == "proven").all()).sum()
    assert set(contrasts["n_pairs"]) == {4 + whole}
    assert set(contrasts["hosts"]) == {f"node1 4, node2 {whole}"}
    page = next(checkout.path.glob("reports/*/index.html")).read_text()
    assert "host node2 failed, its unfinished blocks are lost" in page

    # It comes back: only what it lost is measured, as another attempt.
    lost.start()
    done = checkout.snakemake("--cores", "2", "all", "--config", *STUDY, check=True)
    assert "every one of 16 cells is proven" in done.stderr
    after = pd.read_parquet(checkout.path / TABLES / "cells.parquet").set_index("cell")
    assert set(after.index[after["attempt"] == 2]) == set(failed.index)


def test_a_host_that_cannot_be_used_is_left_out_at_the_start(checkout, servers) -> None:
    file = checkout.path / "conf/host/node2.yaml"
    file.write_text(file.read_text().replace(f"port: {servers['node2'].port}", "port: 1"))
    words = [*STUDY[:2], "launches=4", STUDY[3]]
    done = checkout.snakemake("--cores", "2", "all", "--config", *words)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("host node2 is left out")]
    assert len(said) == 1, done.stderr
    outcomes = [
        (json.loads((p / "cell.json").read_text()), json.loads((p / "outcome.json").read_text()))
        for p in (checkout.path / "results/cells").iterdir()
    ]
    by_host = {
        host: {o["outcome"] for c, o in outcomes if c["identity"]["host"]["name"] == host}
        for host in HOSTS
    }
    assert by_host == {"node1": {"proven"}, "node2": {"failed"}}

    file = checkout.path / "conf/host/node1.yaml"
    file.write_text(file.read_text().replace(f"port: {servers['node1'].port}", "port: 1"))
    done = checkout.snakemake("--cores", "2", "all", "--config", *words, "session=none")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "no host of smoke can be used" in errors[0]
