"""Makes every Python process of a launch hard to end, and breaks it when a test says so.

Python imports this by itself, because the launch's environment puts it on PYTHONPATH. The
process ignores TERM, wipes the environment that others can read, takes another name, and
has a child that left its session, has no environment either and ignores TERM too. The
file FAULT_FILE says what goes wrong, and when.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

FAULT = Path(os.environ["FAULT_FILE"])
CHILD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(900)
"""


def fault() -> str:
    try:
        return FAULT.read_text().strip()
    except OSError:
        return ""


def tell(what: str) -> None:
    FAULT.with_suffix(".told").write_text(what)


def leave_a_child() -> None:
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, ["EngineCore", "-I", "-S", "-c", CHILD], {})


def wipe() -> None:
    """Do what setproctitle does to the memory behind /proc/PID/environ, and to the name."""
    for name, value in os.environ.items():
        os.putenv(name, value)  # a copy elsewhere, for getenv in libraries
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)
    Path("/proc/self/comm").write_text("VLLM::Worker")


def fill_the_disk() -> None:
    try:
        with open("filler", "wb", buffering=0) as file:
            while True:
                file.write(b"\0" * (1 << 20))
    except OSError:
        tell("full")


def act(line: str) -> None:
    what, phase = fault(), json.loads(line)["phase"] if line.startswith("{") else ""
    if what == "crash under load" and phase == "in_flight":
        tell("crashing")
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGSEGV)).start()
    if phase != "warmup":
        return
    if what == "hold":
        tell("held")
        while fault() == "hold":
            time.sleep(0.05)
    elif what == "crash in warm-up":
        tell("crashed")
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "fill the disk":
        fill_the_disk()
    elif what == "ballast":
        Path("ballast").write_bytes(os.urandom(12 << 20))


class Input:
    """Standard input that looks at each command before the program gets it."""

    def __init__(self, real) -> None:
        self._real = real

    def __iter__(self):
        for line in self._real:
            act(line)
            yield line

    def __getattr__(self, name: str):
        return getattr(self._real, name)


if "replay" in sys.orig_argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_a_child()
    wipe()
    sys.stdin = Input(sys.stdin)
    if fault() == "never ready":
        tell("mute")
        time.sleep(900)
