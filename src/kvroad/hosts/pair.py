"""Two hosts with one half of a launch each: two agents, told step by step what comes next."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvroad.agent.manifest import MANIFEST, write_manifest
from kvroad.evidence.events import AgentEvent
from kvroad.hosts.agent_host import AgentHost, OnEvent, is_usable, one_line
from kvroad.hosts.machine import HostLost
from kvroad.hosts.session import AgentSession
from kvroad.plan import Phase, Plan

__all__ = ["PairedHosts"]

# Files that both agents write; the passive half's get its name in front.
_BOTH_WRITE = ("plan.json", "events.jsonl", "counters.jsonl", "facts.json", "versions.json")


class _Failed(Exception):
    """A step failed on one of the hosts."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class PairedHosts:
    """Prefill on one host, decode on another.

    The posting half's host leads: its events, counters and facts stand for the launch, and
    the passive half's lie beside them.
    """

    def __init__(self, sides: Mapping[str, AgentHost]) -> None:
        self._sides = dict(sides)

    def hosts(self) -> list[AgentHost]:
        """Return both hosts in the order of their names, in which they are locked."""
        return sorted(self._sides.values(), key=lambda host: host.host.name)

    def close(self) -> None:
        """Let go of both connections."""
        for host in self._sides.values():
            host.close()

    def run(self, plan: Plan, raw_dir: Path, on_event: OnEvent) -> None:
        """Run a plan on both hosts and lay one raw folder down at ``raw_dir``.

        Raises
        ------
        UserError
            When one of the hosts is busy.
        HostLost
            When one of the agents died; the other ends its half by itself.
        """
        parts = {side: self._part(plan, side) for side in self._sides}
        folders = {side: raw_dir.with_name(f"{raw_dir.name}-{side}") for side in self._sides}
        if not self._recover(parts, folders):
            self._run(plan, parts, on_event)
            for side, host in self._sides.items():
                host.fetch(plan.launch, folders[side])
        _merge(folders, _posting(plan), raw_dir)

    def _part(self, plan: Plan, side: str) -> Plan:
        """Return what one host runs of a plan, with that host's devices to count."""
        host = self._sides[side].host
        claim = replace(
            plan.claim,
            side=side,
            interfaces=list(host.interfaces),
            rdma_devices=list(host.rdma_devices),
            gpus=list(host.gpus),
        )
        processes = [p for p in plan.processes if p.side == side]
        facts_from = processes[0].name
        return replace(plan, claim=claim, processes=processes, facts_from=facts_from)

    def _recover(self, parts: Mapping[str, Plan], folders: Mapping[str, Path]) -> bool:
        """Fetch both halves of an earlier, unbroken run, if they wait on their hosts."""
        found = [
            is_usable(parts[side], folders[side]) or host.recover(parts[side], folders[side])
            for side, host in self._sides.items()
        ]
        if all(found):
            return True
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        return False

    def _run(self, plan: Plan, parts: Mapping[str, Plan], on_event: OnEvent) -> None:
        side_of = {id(host): side for side, host in self._sides.items()}
        sessions: dict[str, AgentSession] = {}
        try:
            with contextlib.ExitStack() as stack:
                for host in self.hosts():
                    side = side_of[id(host)]
                    session = stack.enter_context(host.session("--relayed"))
                    sessions[side] = session
                    session.send(one_line(parts[side]))
                    # The event comes with the lock: only then may the next host be asked.
                    self._await(session, "launch", on_event)
                self._relay(plan, sessions, on_event)
        except (HostLost, KeyboardInterrupt) as error:
            notes = [
                f"{self._sides[side].host.name}: {self._sides[side].clean_up(session)}"
                for side, session in sessions.items()
            ]
            raise type(error)(f"{error}; {'; '.join(notes)}".strip("; ")) from error

    def _relay(self, plan: Plan, sessions: Mapping[str, AgentSession], on_event: OnEvent) -> None:
        posting = _posting(plan)
        passive = next(side for side in sessions if side != posting)
        near, far = sessions[posting], sessions[passive]
        failure: dict[str, str] = {}
        try:
            ports = self._do(far, _ignore, "start")["ports"]
            self._do(near, on_event, "start", ports=ports)
            for cell in plan.cells:
                for phase in cell.phases:
                    self._phase(near, far, on_event, cell.cell, phase)
        except _Failed as failed:
            failure = {"step": failed.step, "reason": failed.reason}
        # The posting half ends first, and prints its use counts while its peer lives.
        for session, listener in ((near, on_event), (far, _ignore)):
            session.send(json.dumps({"do": "finish", **failure}))
            for event in session.events():
                listener(event)

    def _phase(
        self, near: AgentSession, far: AgentSession, on_event: OnEvent, cell: str, phase: Phase
    ) -> None:
        where = {"cell": cell, "phase": phase.name}
        self._do(far, _ignore, "begin", **where)
        self._do(near, on_event, "begin", **where)
        self._do(near, on_event, "ask", **where)
        for what in ("complete", "check"):
            self._do(near, on_event, what, **where)
            self._do(far, _ignore, what, **where)

    def _do(self, session: AgentSession, on_event: OnEvent, what: str, **fields: Any) -> AgentEvent:
        session.send(json.dumps({"do": what, **fields}))
        return self._await(session, f"{what}_done", on_event)

    def _await(self, session: AgentSession, name: str, on_event: OnEvent) -> AgentEvent:
        for event in session.events():
            if event["event"] == "failed":
                raise _Failed(event["step"], event["reason"])
            if event["event"] == name:
                return event
            on_event(event)
        raise HostLost(f"{session.label}: the agent ended without the event {name}")


def _ignore(event: AgentEvent) -> None:
    """Take an event of the half that does not lead."""


def _posting(plan: Plan) -> str:
    return "decode" if plan.claim.operation == "read" else "prefill"


def _merge(folders: Mapping[str, Path], posting: str, raw_dir: Path) -> None:
    """Make one raw folder of two: each file of the passive half that both write is renamed."""
    partial = raw_dir.with_name(raw_dir.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folders[posting], partial)
    passive = next(side for side in folders if side != posting)
    for path in sorted(p for p in folders[passive].rglob("*") if p.is_file()):
        name = path.relative_to(folders[passive]).as_posix()
        copy = partial / (f"{passive}.{name}" if name in _BOTH_WRITE else name)
        if name != MANIFEST and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (partial / MANIFEST).unlink()
    write_manifest(partial)
    shutil.rmtree(raw_dir, ignore_errors=True)
    partial.rename(raw_dir)
    for folder in folders.values():
        shutil.rmtree(folder)
