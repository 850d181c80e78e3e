"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

# Against hanging alone: no test may pass or fail by how fast the machine is.
LONGEST_S = 300.0


def wait_until(is_true: Callable[[], object], what: str, timeout_s: float = LONGEST_S) -> None:
    """Wait for a condition; fail, saying what was waited for, once nothing comes of it."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.03)
