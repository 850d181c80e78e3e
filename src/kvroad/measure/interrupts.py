"""Being stopped: Ctrl-C, TERM and a dead Snakemake end the launch that is running, in order."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from kvroad.agent.facts import boot_id
from kvroad.agent.processes import ProcessId, is_running, leaves_of, process_id

__all__ = ["RUNNER_VARIABLE", "forward_to_jobs", "name_runner", "stop_in_order"]

# Says to the jobs of a Snakemake which process that is, and where its number means it.
RUNNER_VARIABLE = "KVROAD_RUNNER"
_LOOK_S = 1.0


def name_runner() -> None:
    """Let the jobs that this process starts know who started them; inherited ones keep theirs."""
    os.environ.setdefault(RUNNER_VARIABLE, _name_of(os.getpid()))


def _name_of(pid: int) -> str:
    found = process_id(pid)
    ticks = found.start_ticks if found else 0
    return f"{pid} {ticks} {boot_id()} {Path('/proc/self/ns/pid').readlink()}"


def forward_to_jobs() -> None:
    """Stop the running jobs when this Snakemake is told to stop.

    Snakemake itself lets them run to their end on TERM, and on an interrupt that is not
    the terminal's: minutes on a host that is paid for by the minute.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _forwarding(signal.getsignal(number)))


def _forwarding(
    before: Callable[[int, FrameType | None], Any] | int | None,
) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        # The shells between wait for their scripts, which need a moment to clean up.
        for pid in leaves_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if callable(before):
            before(number, frame)

    return handle


def stop_in_order() -> None:
    """Turn the first INT or TERM, or the death of Snakemake, into one KeyboardInterrupt.

    Later ones are ignored: what follows is the clean-up of the host, and it ends in time.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    runner = os.environ.get(RUNNER_VARIABLE)
    # On another machine, as on a cluster, the number says nothing.
    if runner is not None and runner.split()[2:] == _name_of(0).split()[2:]:
        threading.Thread(target=_watch, args=(runner,), daemon=True).start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _watch(runner: str) -> None:
    pid, start_ticks = map(int, runner.split()[:2])
    while is_running(ProcessId(pid, start_ticks)):
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
