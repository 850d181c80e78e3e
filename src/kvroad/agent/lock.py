"""One launch at a time on a host: an advisory lock that names its holder."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from kvroad.evidence.events import Holder

__all__ = ["HostBusy", "HostLock", "lock_holder"]

_UNKNOWN: Holder = {"owner": "unknown"}
_LOOK_S = 0.5


class HostBusy(Exception):
    """Somebody else holds the host; ``holder`` says who."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"the host is busy: {holder}")
        self.holder = holder


class HostLock:
    """``flock`` on one file of the host; released by the kernel when the agent dies.

    ``stop_reason`` is asked while waiting: a text ends the wait.

    Raises
    ------
    HostBusy
        On entering, when the lock is not free within ``timeout_s`` seconds.
    """

    def __init__(
        self,
        path: Path,
        owner: str,
        timeout_s: float,
        stop_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.path = path
        self.owner = owner
        self.timeout_s = timeout_s
        self._stop_reason = stop_reason
        self._file: Any = None

    def __enter__(self) -> HostLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+")
        # Who only looks at the lock holds it for a moment, which must not read as busy.
        deadline = time.monotonic() + max(self.timeout_s, _LOOK_S)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or self._stop_reason() is not None:
                    holder = _read_holder(self._file)
                    self._file.close()
                    raise HostBusy(holder) from None
                time.sleep(0.2)
        self._file.truncate(0)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._file.write(json.dumps({"owner": self.owner, "pid": os.getpid(), "since": since}))
        self._file.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.truncate(0)
        self._file.close()


def lock_holder(path: Path) -> Holder | None:
    """Return who holds the lock now, None where nobody does."""
    try:
        with open(path, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file)
    except FileNotFoundError:
        pass
    return None


def _read_holder(file: Any) -> Holder:
    file.seek(0)
    try:
        holder: Holder = json.loads(file.read())
    except ValueError:
        return _UNKNOWN
    return holder if isinstance(holder, dict) else _UNKNOWN
