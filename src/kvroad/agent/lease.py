"""The lease: the agent works while somebody at the other end shows a sign of life."""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from kvroad.evidence.events import RelayCommand

__all__ = ["GRACE_SHARE", "Lease"]

# What is left of a lease ends the processes: a fifth of it for those that heed TERM, the
# rest for KILL, so that the host is clean when the lease is over.
SILENCE_SHARE = 0.6
GRACE_SHARE = 0.2


class Lease:
    """Watches standard input for heartbeats and the process for signals.

    Parameters
    ----------
    lease_s
        Seconds after its last line in which a lost client's processes are ended; silence
        counts as a loss after a share of them. None for runs by hand, which nobody
        watches. Measured on ``clock``, monotonic by default: a step of the wall clock
        neither ends nor extends it.
    """

    def __init__(self, lease_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
        self.commands: queue.Queue[RelayCommand] = queue.Queue()
        self._clock = clock
        self._last = clock()
        self._reason: str | None = None

    def beat(self) -> None:
        """Note a sign of life."""
        self._last = self._clock()

    def stop(self, reason: str) -> None:
        """Ask for an end; the first reason stays."""
        self._reason = self._reason or reason

    def stop_reason(self) -> str | None:
        """Return why the work must end, or None while it may go on."""
        if self._reason is None and self.lease_s is not None:
            silent_s = self._clock() - self._last
            if silent_s > SILENCE_SHARE * self.lease_s:
                self._reason = f"no heartbeat for {silent_s:.1f} s (lease {self.lease_s:g} s)"
        return self._reason

    def grace_s(self, longest_s: float) -> float:
        """Return how long processes have between TERM and KILL."""
        if self.lease_s is None or self.stop_reason() is None:
            return longest_s
        return min(longest_s, GRACE_SHARE * self.lease_s)

    def watch_signals(self) -> None:
        """Turn TERM, INT and HUP into an orderly end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop(f"signal {signal.Signals(number).name}")

    def watch_stdin(self, stream: TextIO | None = None) -> None:
        """Read heartbeats in a thread; ``stop`` ends the work, so does the end of input.

        A line of JSON is a command and waits in ``commands``.
        """
        thread = threading.Thread(target=self._read, args=(stream or sys.stdin,), daemon=True)
        thread.start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self.beat()
            if line.startswith("{"):
                self.commands.put(json.loads(line))
            elif line.strip() == "stop":
                self.stop("the client asked for it")
        self.stop("the client closed the connection")
