import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvroad.agent.processes import (
    TAG_VARIABLE,
    Ledger,
    ProcessId,
    end_processes,
    find_ours,
    process_id,
)

# A parent that ignores TERM, a child in a session of its own, and a grandchild that wiped
# its environment: three ways to escape a plain kill of the process group.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = "import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
subprocess.Popen([sys.executable, "-c", sleep], env={})
print("up", flush=True)
time.sleep(600)
"""


def end(ledger: Ledger, grace_s: float = 0.0) -> list[ProcessId]:
    """End the processes of a ledger, however long the kernel takes for it."""
    return end_processes(ledger, None, grace_s, kill_s=300.0)


@pytest.fixture
def stubborn(tmp_path: Path):
    tag = f"test:{tmp_path.name}"
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        env={**os.environ, TAG_VARIABLE: tag},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    ledger = Ledger(tmp_path / "ledger.json", tag)
    ledger.add(process.pid)
    yield process, ledger
    end(ledger)
    process.stdout.close()
    process.wait()


def test_all_three_are_found_and_ended(stubborn) -> None:
    process, ledger = stubborn
    assert len(find_ours(ledger.tag, ledger.entries, None)) == 3
    assert end(ledger, grace_s=0.5) == []
    assert process.wait() == -signal.SIGKILL
    assert find_ours(ledger.tag, ledger.entries, None) == []


def test_a_ledger_read_back_finds_them_after_the_parent_died(stubborn) -> None:
    process, ledger = stubborn
    process.kill()
    process.wait()
    read = Ledger.read(ledger.path)
    assert read is not None
    left = find_ours(read.tag, read.entries, None)
    assert len(left) == 2
    assert end(read) == []


def test_a_number_taken_over_by_somebody_else_is_not_ours(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        real = process_id(other.pid)
        assert real is not None
        earlier = ProcessId(other.pid, real.start_ticks - 1)
        assert find_ours("test:nobody", [earlier], None) == []
        ledger = Ledger(tmp_path / "ledger.json", "test:nobody")
        ledger.entries, ledger.seen = [earlier], {earlier}
        assert end(ledger) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_descendants_are_ours_without_tag_or_session() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True
    )
    try:
        assert child.pid in {p.pid for p in find_ours("test:none", [], os.getpid())}
        assert child.pid not in {p.pid for p in find_ours("test:none", [], None)}
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tag": "x"}', '{"tag":"x","processes":[1]}'])
def test_a_torn_ledger_is_no_ledger(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    assert Ledger.read(path) is None


# Forks twice: the middle one ends, the last one has its own session and no environment, and says
# so once it has been adopted.
DAEMON = """
import os, sys, time
code = "import os, sys, time\\n"
code += "while os.getppid() != int(sys.argv[1]): time.sleep(0.01)\\n"
code += "print(os.getpid(), flush=True); time.sleep(600)"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", code, sys.argv[1]], {})
    os._exit(0)
os.wait()
time.sleep(600)
"""


ADOPTER = """
import os, subprocess, sys
from pathlib import Path
from kvroad.agent.processes import Ledger, become_subreaper
become_subreaper()
words = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
parent = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
ledger = Ledger(Path(sys.argv[2]), "test:daemon")
ledger.add(parent.pid)
daemon = int(parent.stdout.readline())
ledger.note(os.getpid())
assert daemon in {entry.pid for entry in ledger.seen}
parent.kill()
parent.wait()
"""


def test_a_daemon_seen_once_is_found_when_its_adopter_is_gone(tmp_path: Path) -> None:
    """An adopter of its own: what other tests left is not this test's to end."""
    path = tmp_path / "ledger.json"
    subprocess.run([sys.executable, "-c", ADOPTER, DAEMON, str(path)], check=True, timeout=300)
    ledger = Ledger(path, "test:daemon")
    read = Ledger.read(ledger.path)
    assert read is not None
    # Without what was seen, nothing leads to it: no tag, no session, no parent of ours.
    assert find_ours(read.tag, read.entries, None) == []
    assert len(find_ours(read.tag, read.entries, None, read.seen)) == 1
    assert end(read) == []
    assert find_ours(read.tag, read.entries, None, read.seen) == []
