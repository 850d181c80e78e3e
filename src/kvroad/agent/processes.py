"""Whose process is it, and how it is ended: tags, a ledger, sessions and descendants."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "TAG_VARIABLE",
    "Ledger",
    "ProcessId",
    "become_subreaper",
    "end_processes",
    "find_ours",
    "is_running",
    "leaves_of",
    "process_id",
]

TAG_VARIABLE = "KVROAD_TAG"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number.

    ``start_ticks`` is field 22 of ``/proc/PID/stat`` (proc(5)).
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int


def become_subreaper(*, is_on: bool = True) -> None:
    """Make orphans of our children our own children (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of a live process, or None when there is none."""
    stat = _read_stat(pid)
    return ProcessId(pid, stat.start_ticks) if stat else None


def leaves_of(ancestor: int) -> list[int]:
    """Return the descendants of a process, of its own process group, that have no child in it."""
    stats = {stat.pid: stat for stat in _all_stats()}
    if ancestor not in stats:
        return []
    group = stats[ancestor].group
    members = [s for s in stats.values() if s.group == group and s.state != "Z"]
    parents = {stat.parent for stat in members}
    return [
        stat.pid
        for stat in members
        if stat.pid not in parents and _descends(stat.pid, {ancestor}, stats)
    ]


def is_running(entry: ProcessId) -> bool:
    """Return whether a process still runs; one that nobody has waited for yet does not."""
    stat = _read_stat(entry.pid)
    return stat is not None and _is(stat, entry) and stat.state not in "ZX"


class Ledger:
    """The processes a launch started, on disk before anything else can happen to them.

    The file outlives a killed agent; the next one reads it and ends what is left. What
    it says holds until the host boots again: ``boot_id`` tells.
    """

    def __init__(self, path: Path, tag: str, boot_id: str | None = None) -> None:
        self.path = path
        self.tag = tag
        self.boot_id = boot_id
        self.entries: list[ProcessId] = []
        self.seen: set[ProcessId] = set()

    @classmethod
    def read(cls, path: Path) -> Ledger | None:
        """Read a ledger; None where a crash left it empty or torn."""
        try:
            data = json.loads(path.read_text())
            ledger = cls(path, data["tag"], data.get("boot_id"))
            ledger.entries = [ProcessId(**e) for e in data["processes"]]
            ledger.seen = {ProcessId(**e) for e in data.get("seen", [])}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return ledger

    def add(self, pid: int) -> None:
        """Record a process that was just started in a session of its own."""
        found = process_id(pid)
        if found is not None:
            self.entries.append(found)
        self.write()

    def note(self, ancestor: int) -> None:
        """Record who has come of the processes by now.

        One that leaves its session, wipes its environment and loses its parent could not
        be found again once the agent that adopted it is gone.
        """
        found = set(find_ours(self.tag, self.entries, ancestor, self.seen))
        if found - self.seen:
            self.seen |= found
            self.write()

    def write(self) -> None:
        """Write the ledger atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "tag": self.tag,
            "boot_id": self.boot_id,
            "processes": [vars(entry) for entry in self.entries],
            "seen": [vars(entry) for entry in sorted(self.seen)],
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(data))
        os.replace(temporary, self.path)


def find_ours(
    tag: str,
    started: Iterable[ProcessId],
    ancestor: int | None,
    seen: Collection[ProcessId] = (),
) -> list[ProcessId]:
    """Return the live processes that belong to a launch.

    A process is ours if its environment carries the tag, if its session or group was
    opened by a process in the ledger, or if it descends from one of them or from
    ``ancestor``; so is one that was ``seen`` to be ours before, and what descends from it.
    """
    stats = {s.pid: s for s in _all_stats()}
    me = os.getpid()
    started = list(started)
    leaders = _live_or_unclaimed(started, stats)
    parents = {e.pid for e in (*started, *seen) if e.pid in stats and _is(stats[e.pid], e)}
    if ancestor is not None:
        parents.add(ancestor)
    ours = []
    for stat in stats.values():
        if stat.pid == me or stat.state == "Z":
            continue
        if (
            stat.pid in parents
            or stat.pid in leaders
            or stat.session in leaders
            or stat.group in leaders
            or _descends(stat.pid, parents, stats)
            or _carries_tag(stat.pid, tag)
        ):
            ours.append(ProcessId(stat.pid, stat.start_ticks))
    return ours


def _is(stat: _Stat, entry: ProcessId) -> bool:
    return stat.start_ticks == entry.start_ticks


def _live_or_unclaimed(started: Iterable[ProcessId], stats: dict[int, _Stat]) -> set[int]:
    """Leader numbers that still mean our sessions.

    A number that a later process has taken over is dropped: a session keeps its number
    from being reused while any member lives, so a new leader means that ours is empty.
    """
    leaders = set()
    for entry in started:
        holder = stats.get(entry.pid)
        if holder is None or _is(holder, entry):
            leaders.add(entry.pid)
    return leaders


def end_processes(
    ledger: Ledger, ancestor: int | None, grace_s: float, kill_s: float = 10.0
) -> list[ProcessId]:
    """End every process of a launch: TERM, wait, KILL, wait; return what survived.

    The search is repeated while waiting, because a dying process may fork.
    """
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + wait_s
        signalled: set[ProcessId] = set()
        while True:
            left = find_ours(ledger.tag, ledger.entries, ancestor, ledger.seen)
            # An orphan that is found once stays ours when its parent is gone.
            ledger.seen.update(left)
            if not left:
                reap_orphans(ledger.entries)
                return []
            for entry in left:
                if entry not in signalled:
                    _signal(entry, number)
                    signalled.add(entry)
            if time.monotonic() >= deadline:
                break
            reap_orphans(ledger.entries)
            time.sleep(0.05)
    return find_ours(ledger.tag, ledger.entries, ancestor, ledger.seen)


def reap_orphans(started: Iterable[ProcessId]) -> None:
    """Collect adopted orphans, so that no zombie stays; whoever started a process waits for it."""
    me, known = os.getpid(), {entry.pid for entry in started}
    for stat in _all_stats():
        if stat.parent == me and stat.state == "Z" and stat.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)


def _signal(entry: ProcessId, number: int) -> None:
    try:
        if process_id(entry.pid) == entry:
            os.kill(entry.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        return  # The survivor is reported by end_processes.


def _descends(pid: int, ancestors: set[int], stats: dict[int, _Stat]) -> bool:
    passed: set[int] = set()
    while pid in stats and pid not in passed:
        passed.add(pid)
        pid = stats[pid].parent
        if pid in ancestors:
            return True
    return False


def _carries_tag(pid: int, tag: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{TAG_VARIABLE}={tag}".encode() in environment.split(b"\0")


def _all_stats() -> Iterable[_Stat]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _read_stat(int(name))
            if stat is not None:
                yield stat


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name may hold blanks and brackets; the fields start after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
