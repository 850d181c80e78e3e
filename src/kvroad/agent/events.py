"""Events of a run: JSON lines on standard output and in the raw folder."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from kvroad.evidence.redact import redact_text

__all__ = ["Events"]

_ALIVE_S = 1.0
# What waits for a client that does not read; more than this is dropped.
_MOST_WAITING = 10_000


class Events:
    """Writes each event to the client and, once a folder is known, to ``events.jsonl``.

    A thread writes to the client, and an ``alive`` event where there was none for a
    second: a client that stopped reading must not keep processes from being ended.
    """

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._file: TextIO | None = None
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        self.is_client_lost = False

    def open(self, path: Path) -> None:
        """Start the file; events sent before stay with the client only."""
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def send(self, event: str, *, keep: bool = True, **fields: Any) -> None:
        """Send one event; ``keep=False`` leaves it out of the raw folder."""
        line = _line(event, fields)
        if keep and self._file is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError:
                # A full disk must not keep the processes from being ended.
                self._file = None
        self._hand_over(line.encode() + b"\n")

    def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until the client has got everything, or no longer than this; the last call."""
        self._hand_over(None)
        self._writer.join(timeout_s)

    def _hand_over(self, line: bytes | None) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(line)

    def _write(self) -> None:
        while True:
            try:
                line = self._waiting.get(timeout=_ALIVE_S)
            except queue.Empty:
                line = _line("alive", {}).encode() + b"\n"
            if line is None:
                return
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self.is_client_lost = True
                return


def _line(event: str, fields: Mapping[str, object]) -> str:
    row = {
        "event": event,
        **fields,
        "mono_ns": time.monotonic_ns(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return redact_text(json.dumps(row, ensure_ascii=False))
