"""The lease: the agent works while somebody at the other end shows a sign of life."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TextIO

__all__ = ["Lease"]


class Lease:
    """Watches standard input for heartbeats and the process for signals.

    Parameters
    ----------
    lease_s
        Seconds without a line after which the client counts as lost; None for runs by
        hand, which nobody watches. Measured on ``clock``, monotonic by default: a step of
        the wall clock neither ends nor extends it.
    """

    def __init__(self, lease_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
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
            if silent_s > self.lease_s:
                self._reason = f"no heartbeat for {silent_s:.1f} s (lease {self.lease_s:g} s)"
        return self._reason

    def watch_signals(self) -> None:
        """Turn TERM, INT and HUP into an orderly end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop(f"signal {signal.Signals(number).name}")

    def watch_stdin(self, stream: TextIO | None = None) -> None:
        """Read heartbeats in a thread; ``stop`` ends the work, so does the end of input."""
        thread = threading.Thread(target=self._read, args=(stream or sys.stdin,), daemon=True)
        thread.start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self.beat()
            if line.strip() == "stop":
                self.stop("the client asked for it")
        self.stop("the client closed the connection")
