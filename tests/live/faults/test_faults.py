"""The fault matrix: break a launch over SSH in every way, measure what is left of it.

The processes of each launch are those of engine/sitecustomize.py: they ignore TERM, have a
child in a session of its own, wipe their environment and rename themselves.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import LEASE_S, Bench, Row
from waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]
START_TIMEOUT_S = 8.0
DEAD = "(none: the client is dead)"
# Each fault gets a prompt length of its own, so that its two cells are open.
LENGTHS = itertools.count(320, 64)


def take(rows: list[Row], row: Row, within_s: float = LEASE_S) -> None:
    """Keep a row of the matrix, and hold it against what is promised."""
    rows.append(row)
    assert row.processes_left == 0
    assert row.cells_lost == 0
    if row.seconds_until_clean is not None:
        assert row.seconds_until_clean <= within_s


def kill_client(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.killpg(run.pid, signal.SIGKILL)
    return DEAD


def kill_snakemake(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.kill(run.pid, signal.SIGKILL)
    return DEAD


def freeze_client(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.killpg(run.pid, signal.SIGSTOP)
    return ""


def interrupt(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.killpg(run.pid, signal.SIGINT)
    return ""


def terminate_snakemake(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.kill(run.pid, signal.SIGTERM)
    return ""


def cut_connection(bench: Bench, run: "subprocess.Popen[str]") -> str:
    bench.proxy.cut()
    return ""


def silence_network(bench: Bench, run: "subprocess.Popen[str]") -> str:
    bench.proxy.go_silent()
    return ""


def freeze_sshd(bench: Bench, run: "subprocess.Popen[str]") -> str:
    for pid in bench.sshd.sessions():
        os.kill(pid, signal.SIGSTOP)
    return ""


def kill_agent(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.kill(bench.agent(), signal.SIGKILL)
    return ""


def terminate_agent(bench: Bench, run: "subprocess.Popen[str]") -> str:
    os.kill(bench.agent(), signal.SIGTERM)
    return ""


Break = Callable[[Bench, "subprocess.Popen[str]"], str]


@pytest.mark.parametrize(
    ("fault", "do"),
    [
        ("client kill -9 (Snakemake and its jobs)", kill_client),
        ("Snakemake alone kill -9", kill_snakemake),
        ("client frozen (SIGSTOP)", freeze_client),
        ("Ctrl-C", interrupt),
        ("TERM to Snakemake", terminate_snakemake),
        ("connection cut (reset)", cut_connection),
        ("network silent, connection open", silence_network),
        ("sshd session frozen (SIGSTOP)", freeze_sshd),
        ("agent kill -9", kill_agent),
        ("agent TERM", terminate_agent),
    ],
)
def test_a_launch_that_is_cut_off(bench: Bench, rows: list[Row], fault: str, do: Break) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    run = bench.start(length, "hold")
    bench.await_told("held", run)
    # Two halves, a child of each, and the agent.
    assert len(bench.processes()) == 5
    since = time.monotonic()
    message = do(bench, run)
    seconds = bench.seconds_until_clean(since)
    if do is freeze_client:
        os.killpg(run.pid, signal.SIGCONT)
    bench.fault_file.write_text("")
    said = bench.finish(run)
    bench.proxy.come_back()
    for pid in bench.sshd.sessions():
        os.kill(pid, signal.SIGCONT)
    assert run.returncode != 0, bench.said
    assert message or said, bench.said
    note = ""
    if do in (kill_client, kill_snakemake):
        note = "The next run needs `snakemake --unlock` first: a killed Snakemake leaves its lock."
        assert "LockException" in bench.checkout.snakemake(*bench.words(length)).stderr
        bench.checkout.snakemake("--unlock", check=True)
    next_run = bench.complete(length)
    take(rows, bench.row(fault, seconds, before, message or said, next_run, note))


@pytest.mark.parametrize("fault", ["crash in warm-up", "crash under load", "never ready"])
def test_an_engine_that_fails(bench: Bench, rows: list[Row], fault: str) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    soon = [f"engine.start_timeout_s={START_TIMEOUT_S:g}"] if fault == "never ready" else []
    run = bench.start(length, fault, *soon)
    told = {"crash in warm-up": "crashed", "crash under load": "crashing", "never ready": "mute"}
    bench.await_told(told[fault], run)
    since = time.monotonic()
    # The second cell of the run is to be measured in peace.
    wait_until(lambda: "exit" in kept_events(bench) or not bench.processes(), "the engine's end")
    bench.fault_file.write_text("")
    launch = bench.agent_launches()
    wait_until(
        lambda: launch != bench.agent_launches() or not bench.processes(), "the launch's end"
    )
    seconds = time.monotonic() - since
    said = bench.finish(run)
    assert ": failed: " in said, bench.said
    next_run = bench.complete(length)
    note = f"counted from the start; {START_TIMEOUT_S:g} s of it are engine.start_timeout_s"
    row = bench.row(fault, seconds, before, said, next_run, note if fault == "never ready" else "")
    take(rows, row, within_s=LEASE_S + START_TIMEOUT_S if fault == "never ready" else LEASE_S)


def kept_events(bench: Bench) -> str:
    """Return the events of the launches that are running."""
    found = bench.sshd.node_dir.glob("launches/*.partial/events.jsonl")
    return "".join(path.read_text() for path in found)


def test_a_full_disk(make_bench, rows: list[Row], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=560m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system needs the right to mount")
    try:
        bench = make_bench(small / "work")
        bench.complete(256)
        length, before = next(LENGTHS), bench.finished()
        run = bench.start(length, "fill the disk")
        bench.await_told("full", run)
        since = time.monotonic()
        bench.fault_file.write_text("")
        wait_until(
            lambda: not list(bench.sshd.node_dir.glob("launches/*/filler")), "room on the disk"
        )
        seconds = time.monotonic() - since
        said = bench.finish(run)
        assert "No space left on device" in bench.said
        next_run = bench.complete(length)
        take(rows, bench.row("disk full on the host", seconds, before, said, next_run))
    finally:
        bench.stop()
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_download_that_is_cut(bench: Bench, rows: list[Row], is_back: bool) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    bench.proxy.is_slow = True
    run = bench.start(length, "ballast")
    wait_until(lambda: list(bench.sshd.node_dir.glob("launches/*/manifest.json")), "a raw folder")
    bench.fault_file.write_text("")
    bench.proxy.is_reachable = is_back
    at = bench.proxy.bytes_to_client
    bench.proxy.after(2 << 20, bench.proxy.cut)
    since = time.monotonic()
    wait_until(lambda: bench.proxy.bytes_to_client - at >= 2 << 20, "the cut")
    seconds = bench.seconds_until_clean(since)
    if is_back:
        bench.proxy.is_slow = False
        said = bench.finish(run)
        assert run.returncode == 0, bench.said
        # 12 MiB in all: the part that had arrived was not fetched again.
        assert bench.proxy.bytes_to_client - at < 16 << 20
        fault, said = "raw download cut once", "(none: the download went on by itself)"
    else:
        said = bench.finish(run)
        assert run.returncode != 0
        assert list(bench.sshd.node_dir.glob("launches/*/manifest.json"))
        bench.proxy.come_back()
        fault = "raw download cut, host out of reach"
    next_run = bench.complete(length)
    if not is_back:
        assert "fetched" in next_run
    assert list(bench.sshd.node_dir.glob("launches/*")) == []
    take(rows, bench.row(fault, seconds, before, said, next_run))


def test_a_second_study_at_the_same_time(bench: Bench, make_checkout, rows: list[Row]) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    run = bench.start(length, "hold")
    bench.await_told("held", run)
    mine = bench.processes()
    other = make_checkout()
    (other.home / ".ssh").mkdir()
    (other.home / ".ssh/known_hosts").write_text(bench.sshd.account.known_hosts.read_text())
    second = other.snakemake(*bench.words(length))
    assert second.returncode != 0
    said = next(line for line in second.stderr.splitlines() if "is busy" in line)
    assert f"in {bench.checkout.path}" in said
    stopped = other.kvroad("stop", "study=smoke", "host=ssh", *bench.sshd.overrides())
    assert "is at work there; left alone" in stopped.stdout
    assert bench.processes() == mine
    bench.fault_file.write_text("")
    bench.finish(run)
    assert run.returncode == 0, bench.said
    assert other.snakemake(*bench.words(length), check=True)
    row = bench.row(
        "second study at the same time",
        None,
        before,
        bench.without_paths(said.strip()),
        "the first study was not disturbed; the second ran after it",
    )
    take(rows, row)


def test_kvroad_stop(bench: Bench, rows: list[Row]) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    run = bench.start(length, "hold")
    bench.await_told("held", run)
    since = time.monotonic()
    reach = next(w for w in bench.words(length) if w.startswith("hydra="))[6:].split()
    done = bench.checkout.kvroad("stop", "study=smoke", "host=ssh", *reach)
    seconds = bench.seconds_until_clean(since)
    assert done.returncode == 0, done.stderr
    assert "1 launch of this study ended" in done.stdout
    bench.fault_file.write_text("")
    said = bench.finish(run)
    next_run = bench.complete(length)
    take(rows, bench.row("kvroad stop", seconds, before, said, next_run))


def test_a_reboot(bench: Bench, rows: list[Row]) -> None:
    length = next(LENGTHS)
    before = bench.finished()
    run = bench.start(length, "hold")
    bench.await_told("held", run)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        since = time.monotonic()
        bench.sshd.stop()
        for pid in bench.processes():
            os.kill(pid, signal.SIGKILL)
        seconds = bench.seconds_until_clean(since)
        bench.forget_boot(bystander.pid)
        bench.fault_file.write_text("")
        said = bench.finish(run)
        assert run.returncode != 0
        bench.sshd.start()
        next_run = bench.complete(length)
        # The worst case: a ledger of the last boot names a process of this one to the tick.
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    note = (
        "simulated: sshd, agent and engines were killed at once and the ledger was given "
        "another boot id; the kernel did not boot"
    )
    take(rows, bench.row("host rebooted", seconds, before, said, next_run, note))
