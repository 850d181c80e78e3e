"""The smoke study over a real sshd: the same answer and the same files as on this machine."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("loopback")]
REPORT = "reports/smoke+host=ssh"


@pytest.fixture(scope="module")
def over_ssh(make_checkout, sshd):
    """Return a checkout in which the smoke study has been run over SSH."""
    checkout = make_checkout()
    (checkout.home / ".ssh").mkdir()
    shutil.copy(sshd.account.known_hosts, checkout.home / ".ssh/known_hosts")
    words = ["study=smoke", "host=ssh", "hydra=" + " ".join(sshd.overrides())]
    checkout.snakemake("all", "--config", *words, check=True)
    return checkout


def verdict_rows(path: Path) -> set[tuple[object, ...]]:
    table = pd.read_csv(path)
    return set(table[["arm", "baseline", "prompt_tokens", "metric"]].itertuples(index=False))


def test_every_cell_is_proven_and_the_verdict_has_the_same_rows(over_ssh, measured) -> None:
    cells = pd.read_parquet(over_ssh.path / "results/studies/smoke+host=ssh/cells.parquet")
    assert list(cells["outcome"]) == ["proven"] * 8
    assert set(cells["road_seen"]) == {"cma", "tcp"}
    here, there = measured.path / "reports/smoke", over_ssh.path / REPORT
    assert verdict_rows(here / "verdict.csv") == verdict_rows(there / "verdict.csv")


def test_the_same_files_are_written(over_ssh, measured) -> None:
    here, there = measured.path / "reports/smoke", over_ssh.path / REPORT
    names = [{p.relative_to(top).as_posix() for p in top.rglob("*")} for top in (here, there)]
    assert names[0] == names[1]
    raw = [
        {p.name for p in next(top.glob("results/cells/shm-p256-b0-*/raw")).iterdir()}
        for top in (measured.path, over_ssh.path)
    ]
    assert raw[0] == raw[1]


def test_the_host_keeps_nothing_but_the_agent(over_ssh, sshd) -> None:
    files = [p for p in sshd.work_dir.rglob("*") if p.is_file()]
    assert sorted(p.suffix for p in files) == ["", ".pyz"]
    assert (sshd.node_dir / "lock").read_text() == ""


def test_the_requested_environment_arrived_in_the_engines(over_ssh) -> None:
    # sshd drops what ssh sends; the plan sets it, and UCX says what it got.
    raw = next(over_ssh.path.glob("results/cells/tcp-p256-b0-*/raw"))
    line = next(x for x in (raw / "decode-0.log").read_text().splitlines() if "UCX_TLS=" in x)
    assert "UCX_TLS=tcp" in line
    asked = json.loads((raw / "decode-0.environment.json").read_text())
    assert asked["UCX_TLS"] == "tcp"


def test_servers_listen_on_loopback(over_ssh) -> None:
    for plan in over_ssh.path.glob("results/cells/*/raw/plan.json"):
        assert json.loads(plan.read_text())["bind_address"] == "127.0.0.1"


def test_the_preflight_table_lies_beside_the_results(over_ssh) -> None:
    rows = json.loads((over_ssh.path / "results/hosts/ssh/preflight.json").read_text())
    checks = {row["check"]: row["status"] for row in rows}
    assert {"connection", "Python", "NIXL", "UCX", "work folder", "transport tcp"} <= set(checks)
    assert set(checks.values()) == {"ok"}


def test_an_arm_that_cannot_be_had_stops_the_study_in_front(over_ssh, sshd) -> None:
    words = ["study=smoke", "host=ssh", "transport=[shm,roce]"]
    done = over_ssh.snakemake(
        "all", "--config", *words, "hydra=" + " ".join([*sshd.overrides(), "session=strict"])
    )
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "transport roce: no RDMA device" in errors[0]
    assert "preflight of host ssh (root@127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(over_ssh.path.glob("results/cells/roce-*"))
