"""What is left of earlier launches: ended, stopped on request, removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from kvroad.agent.events import Events
from kvroad.agent.facts import boot_id
from kvroad.agent.lock import HostLock, lock_holder
from kvroad.agent.processes import Ledger, end_processes

__all__ = ["forget", "launch_folder", "reap", "stop"]

_GRACE_S = 3.0
_STOP_S = 60.0


def reap(
    work_dir: Path, events: Events, is_meant: Callable[[Ledger], bool] = lambda ledger: True
) -> list[int]:
    """End what a killed agent left running; touches only what its ledgers name as ours.

    Call it with the lock held: a ledger beside it then belongs to an agent that is gone.
    """
    left: list[int] = []
    for path in sorted((work_dir / "ledger").glob("*.json")):
        ledger = Ledger.read(path)
        if ledger is None:
            path.unlink(missing_ok=True)
            continue
        if not is_meant(ledger):
            continue
        if ledger.boot_id not in (None, boot_id()):
            # Nothing outlives a boot, and its numbers mean other processes by now.
            events.send("reaped", tag=ledger.tag, left=[], rebooted=True)
            path.unlink(missing_ok=True)
            continue
        survivors = end_processes(ledger, None, grace_s=_GRACE_S)
        events.send("reaped", tag=ledger.tag, left=[s.pid for s in survivors])
        if survivors:
            left += [s.pid for s in survivors]
        else:
            path.unlink(missing_ok=True)
    return left


def stop(work_dir: Path, owner: str, events: Events) -> list[int]:
    """End the running launch of an owner, then what earlier ones of it left.

    Raises
    ------
    HostBusy
        When the host is somebody else's, or the agent did not end in time.
    """
    holder = lock_holder(work_dir / "lock")
    if holder is not None and holder.get("owner") == owner:
        events.send("stopping", **holder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(holder["pid"]), signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        while lock_holder(work_dir / "lock") == holder and time.monotonic() < deadline:
            time.sleep(0.1)
    with HostLock(work_dir / "lock", owner, 0.0):
        return reap(work_dir, events, lambda ledger: ledger.tag.startswith(f"{owner}:"))


def launch_folder(work_dir: Path, launch: str) -> Path:
    """Return the raw folder of a launch; raises OSError for what is no plain name."""
    if launch.startswith(".") or "/" in launch or not launch:
        raise OSError(f"{launch!r} is not the name of a launch")
    return work_dir / "launches" / launch


def forget(work_dir: Path, launch: str) -> None:
    """Remove the raw folder of a launch from the host."""
    folder = launch_folder(work_dir, launch)
    for path in (folder, folder.with_name(folder.name + ".partial")):
        if path.exists():
            shutil.rmtree(path)
