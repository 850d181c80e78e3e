"""Events of a run: JSON lines on standard output and in the raw folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from kvroad.evidence.redact import redact_text

__all__ = ["Events"]


class Events:
    """Writes each event to the client and, once a folder is known, to ``events.jsonl``."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._file: TextIO | None = None
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
        row = {
            "event": event,
            **fields,
            "mono_ns": time.monotonic_ns(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        line = redact_text(json.dumps(row, ensure_ascii=False))
        if keep and self._file is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError:
                # A full disk must not keep the processes from being ended.
                self._file = None
        if self.is_client_lost:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (BrokenPipeError, ValueError):
            self.is_client_lost = True
