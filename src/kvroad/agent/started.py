"""A process that the agent has started: what it says, and how it is asked to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kvroad.evidence.events import ProcessEvent
from kvroad.plan import Process

__all__ = ["StartedProcess", "last_lines"]

_LAST_LINES = 8


class StartedProcess:
    """A process with the read end of the pipe that it writes its events to."""

    def __init__(self, spec: Process, popen: subprocess.Popen[bytes], events_fd: int) -> None:
        self.spec = spec
        self.popen = popen
        self.events_fd = events_fd
        self.is_ready = False
        self.events: list[ProcessEvent] = []
        self._buffer = b""
        os.set_blocking(events_fd, False)

    def read_events(self) -> bool:
        """Take in what has been written; returns whether the pipe is still open."""
        chunk = os.read(self.events_fd, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        self.events += [json.loads(line) for line in lines if line]
        return bool(chunk)

    def send(self, line: bytes) -> None:
        """Write a line to its standard input; raises BrokenPipeError where nobody reads."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(line)
        self.popen.stdin.flush()

    def last_words(self, log: Path) -> str:
        """Wait for its end and return why: its error event, else status and end of its log."""
        for row in self.events:
            if row.get("event") == "error":
                return f": {row.get('text')}"
        returncode = self.popen.wait()
        how = f"ended with status {returncode}"
        if returncode < 0:
            how = f"was killed by {signal.Signals(-returncode).name}"
        return f" {how}: {last_lines(log)}"

    def ask_to_stop(self, timeout_s: float, stop_reason: Callable[[], str | None]) -> None:
        """Let it end by its own means, so that it can print its use counts.

        The wait is over when ``stop_reason`` returns one.
        """
        stdin = self.popen.stdin
        if self.popen.poll() is not None or stdin is None:
            return
        if self.spec.ready_event is not None and not self.is_ready:
            return  # It does not listen yet.
        try:
            if self.spec.stop_line is not None:
                stdin.write(self.spec.stop_line.encode() + b"\n")
            stdin.close()
        except BrokenPipeError:
            return
        if self.spec.stop_line is None:
            return
        deadline = time.monotonic() + timeout_s
        while self.popen.poll() is None and time.monotonic() < deadline:
            # A client that is lost by now wants the host clean, not the last line of a log.
            if stop_reason() is not None:
                return
            time.sleep(0.02)


def last_lines(path: Path) -> str:
    """Return the end of a log on one line."""
    lines = path.read_text(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
