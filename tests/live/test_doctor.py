"""`kvroad doctor` on this machine, which has no RDMA device."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("loopback")]


def by_arm(text: str) -> dict[str, Any]:
    return {arm["arm"]: arm for arm in json.loads(text)["arms"]}


def test_a_road_that_is_not_there_is_refused_with_its_cause(
    make_checkout: Callable[[], Any], tmp_path: Path
) -> None:
    checkout = make_checkout()
    done = checkout.kvroad("doctor", "transport=[roce]", "--json", "--keep", str(tmp_path / "raw"))
    assert done.returncode == 1, done.stderr
    roce = by_arm(done.stdout)["roce"]
    assert (roce["outcome"], roce["seen"]) == ("refused", "tcp")
    assert "no RDMA device" in roce["host_says"]
    cause = roce["causes"][0]
    assert "UCX has no 'rc','cuda_copy' on this host" in cause["cause"]
    assert not cause["is_possible"]
    name, line = cause["where"].split(":")
    log = (tmp_path / "raw" / "roce" / name).read_text(errors="replace").splitlines()
    assert "not available" in log[int(line) - 1]
    assert not (checkout.path / "results").exists(), "a doctor leaves no results"


@pytest.mark.slow
def test_roads_that_are_there_are_proven(make_checkout: Callable[[], Any]) -> None:
    checkout = make_checkout()
    done = checkout.kvroad("doctor", "transport=[shm,tcp]", "--json")
    assert done.returncode == 0, done.stdout
    arms = by_arm(done.stdout)
    assert {arm: one["seen"] for arm, one in arms.items()} == {"shm": "cma", "tcp": "tcp"}
    agreeing = {w["name"] for w in arms["tcp"]["witnesses"] if w["status"] == "agrees"}
    assert {"environment", "protocol_table", "use_counts", "interface_bytes"} <= agreeing
    told = checkout.kvroad("doctor", "transport=[shm,tcp,roce]")
    assert told.returncode == 1
    assert told.stdout.splitlines()[-1] == "proven: shm, tcp; not proven: roce"


def test_a_host_that_cannot_be_used(make_checkout: Callable[[], Any]) -> None:
    checkout = make_checkout()
    done = checkout.kvroad("doctor", "transport=[tcp]", 'engine.nixl_version="0.0.1"')
    assert done.returncode == 1
    assert "engine.nixl_version asks for 0.0.1" in done.stdout
    assert "no pull was tried" in done.stdout


@pytest.mark.slow
def test_a_host_over_ssh(make_checkout: Callable[[], Any], sshd: Any) -> None:
    checkout = make_checkout()
    (checkout.home / ".ssh").mkdir()
    shutil.copy(sshd.account.known_hosts, checkout.home / ".ssh/known_hosts")
    words = ["host=ssh", "transport=[shm,roce]", *sshd.overrides(), "--json"]
    done = checkout.kvroad("doctor", *words)
    assert done.returncode == 1, done.stderr
    arms = by_arm(done.stdout)
    assert {arm: one["outcome"] for arm, one in arms.items()} == {
        "shm": "proven",
        "roce": "refused",
    }
    assert "no RDMA device" in arms["roce"]["host_says"]


def test_ctrl_c_ends_with_one_line(make_checkout: Callable[[], Any]) -> None:
    checkout = make_checkout()
    with subprocess.Popen(
        [sys.executable, "-m", "kvroad.cli", "doctor", "transport=[shm,tcp]"],
        cwd=checkout.path,
        env=checkout.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("small pulls"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.startswith("stopped: ")
