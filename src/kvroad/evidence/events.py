"""JSON lines of a launch: events of the programs that a plan starts, of the agent; its commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

__all__ = ["AgentEvent", "Holder", "ProcessEvent", "RelayCommand", "end_of", "read_events"]


class _ProcessEvent(TypedDict):
    event: str


class ProcessEvent(_ProcessEvent, total=False):
    """What a program tells the agent.

    ``ready`` may tell ``ports`` and, in further fields, versions; ``progress`` tells pulls
    ``done``; ``error`` a ``text``. The answer to a phase may tell ``error`` or
    ``payload_bytes``.
    """

    ports: dict[str, int]
    done: int
    text: str
    error: str
    payload_bytes: int


class Holder(TypedDict, total=False):
    """Who holds a host's lock, since when (UTC); ``owner`` alone where that cannot be read."""

    owner: str
    pid: int
    since: str


class AgentEvent(TypedDict, total=False):
    """What the agent tells of a launch, and what its ``events.jsonl`` keeps.

    ``launch`` begins it with ``run_id`` and ``boot_id``; ``check`` tells what a kind of counter
    showed; ``end`` tells ``status``, of which ``complete``, ``stopped``, ``failed`` and
    ``interrupted`` there are, ``step`` and ``reason``. A process adds fields of its own to its
    ``ready`` event, such as ``cache_check``.
    """

    event: str
    launch: str
    cell: str
    phase: str
    process: str
    pulls: int
    done: int
    ports: dict[str, int]
    holder: Holder
    host: str
    tag: str
    pid: int
    left: list[int]
    rebooted: bool
    run_id: str | None
    boot_id: str | None
    returncode: int | None
    kind: str
    ok: bool | None
    expected: str
    seen: str
    where: str
    cache_check: str
    status: str
    step: str
    reason: str
    time: str
    mono_ns: int


class _Command(TypedDict):
    do: str


class RelayCommand(_Command, total=False):
    """What the control side tells an agent that runs one half of a launch; see `relay`."""

    ports: dict[str, int]
    cell: str
    phase: str
    step: str
    reason: str


def read_events(raw_dir: Path) -> list[AgentEvent]:
    """Return what the agent told of the launch of a raw folder.

    Raises
    ------
    OSError, ValueError
        When the file is not there or not whole.
    """
    return [json.loads(line) for line in (raw_dir / "events.jsonl").read_text().splitlines()]


def end_of(raw_dir: Path) -> AgentEvent | None:
    """Return how the launch of a raw folder ended, None where nothing says it."""
    ends = [event for event in read_events(raw_dir) if event["event"] == "end"]
    return ends[-1] if ends else None
