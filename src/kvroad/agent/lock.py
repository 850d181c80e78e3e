"""One launch at a time on a host: an advisory lock that names its holder."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["HostBusy", "HostLock"]


class HostBusy(Exception):
    """Somebody else holds the host; ``holder`` says who."""

    def __init__(self, holder: dict[str, Any]) -> None:
        super().__init__(f"the host is busy: {holder}")
        self.holder = holder


class HostLock:
    """``flock`` on one file of the host; released by the kernel when the agent dies.

    Raises
    ------
    HostBusy
        On entering, when the lock is not free within ``timeout_s`` seconds.
    """

    def __init__(self, path: Path, owner: str, timeout_s: float) -> None:
        self.path = path
        self.owner = owner
        self.timeout_s = timeout_s
        self._file: Any = None

    def __enter__(self) -> HostLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+")
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = self._read_holder()
                    self._file.close()
                    raise HostBusy(holder) from None
                time.sleep(0.2)
        self._file.truncate(0)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._file.write(json.dumps({"owner": self.owner, "pid": os.getpid(), "since": since}))
        self._file.flush()
        return self

    def _read_holder(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            holder = json.loads(self._file.read())
        except ValueError:
            return {"owner": "unknown"}
        return holder if isinstance(holder, dict) else {"owner": "unknown"}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.truncate(0)
        self._file.close()
