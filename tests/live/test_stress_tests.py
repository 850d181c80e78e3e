"""The script that looks for flakes: what it counts, and that its busy processes end with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "stress_tests.py"
# Passes in every second run.
FLAKE = """
from pathlib import Path

def test_flake():
    count = Path(__file__).with_name("count")
    n = int(count.read_text()) if count.exists() else 0
    count.write_text(str(n + 1))
    assert n % 2 == 0, "a flake"

def test_steady():
    pass
"""
SLEEPER = """
import time
from pathlib import Path

def test_sleeps():
    Path(__file__).with_name("up").touch()
    time.sleep(600)
"""


def words(folder: Path, *options: str) -> list[str]:
    paths = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), str(folder)]
    return [sys.executable, str(TOOL), *options, *paths]


@pytest.mark.parametrize("load", [(), ("--load",), ("--load", "1")])
def test_each_run_is_counted_and_failing_tests_are_named(
    tmp_path: Path, load: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(FLAKE)
    command = words(tmp_path, "--runs", "3", *load)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert [line.split(",")[0].split(" (")[0] for line in lines[:3]] == [
        "run 1 of 3: passed",
        "run 2 of 3: FAILED",
        "run 3 of 3: passed",
    ]
    assert lines[3:] == ["failed in 1 of 3: test_it.py::test_flake", "2 of 3 passed"]
    good = subprocess.run(
        [*command, "-k", "steady"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "3 of 3 passed")


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_busy_processes_end_with_it(tmp_path: Path, how: str) -> None:
    (tmp_path / "test_it.py").write_text(SLEEPER)
    command = words(tmp_path, "--runs", "2", "--load", "1")
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until((tmp_path / "up").exists)
        assert busy_of(tool.pid)
        if how == "kill":
            tool.kill()
        else:
            # As a terminal does: pytest gets it too.
            os.killpg(tool.pid, signal.SIGINT)
            out, _ = tool.communicate(timeout=300)
            assert (tool.returncode, out.splitlines()[-1]) == (1, "0 of 2 passed")
        wait_until(lambda: not busy_of(tool.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        tool.communicate()


def busy_of(group: int) -> list[str]:
    """Return the live busy processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            is_member = os.getpgid(int(path.name)) == group
            if is_member and b"while True" in (path / "cmdline").read_bytes():
                found.append(path.name)
    return found


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
