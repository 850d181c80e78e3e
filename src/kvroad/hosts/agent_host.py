"""A host that runs plans: recover or run, fetch, verify, and only then let it forget."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvroad.agent.exits import BUSY, OK
from kvroad.errors import UserError
from kvroad.evidence.events import AgentEvent, end_of
from kvroad.evidence.host_facts import HostSurvey
from kvroad.hosts.machine import HostLost, Machine
from kvroad.hosts.session import AgentSession
from kvroad.plan import Plan, PlanError, dumps, essence, loads
from kvroad.study import fields as study

__all__ = ["AgentHost", "OnEvent", "RunningHost", "is_usable", "one_line"]

OnEvent = Callable[[AgentEvent], None]
# The probe of NIXL loads CUDA where there is one, which takes a while on a cold disk.
_CALL_S = 60.0
_FETCHES = 3


class RunningHost(Protocol):
    """Somewhere a launch can run: one host or two."""

    def run(self, plan: Plan, raw_dir: Path, on_event: OnEvent) -> None:
        """Run a plan and lay its raw folder down at ``raw_dir``."""

    def hosts(self) -> list[AgentHost]:
        """Return the hosts that it is made of, in the order of their names."""

    def close(self) -> None:
        """Let go of every connection."""


class AgentHost:
    """One host: a machine with an agent."""

    def __init__(self, host: study.Host, machine: Machine) -> None:
        self.host = host
        self.machine = machine

    @property
    def label(self) -> str:
        """How messages name the host; it tells more once the host was reached."""
        return self.machine.label

    def hosts(self) -> list[AgentHost]:
        """Return this host."""
        return [self]

    def close(self) -> None:
        """Let go of the connection."""
        self.machine.close()

    def facts(self, ports: Sequence[int] = ()) -> HostSurvey:
        """Return the host's facts as the agent reads them, and who holds these ports."""
        done = self.machine.call(["facts", f"--ports={','.join(map(str, ports))}"], _CALL_S)
        failure = f"the agent does not run: {done.last_words}"
        # The agent there is of this very version: it was brought along.
        survey: HostSurvey = self._json(done.returncode, done.stdout, failure)
        return survey

    def probe(self, script: str) -> dict[str, object]:
        """Run a script that prints a JSON object on one line with the Python that engines get.

        What it printed counts, however its process ended: libraries may crash at exit.
        """
        done = self.machine.ask_python(script, _CALL_S)
        failure = f"probe: ended with status {done.returncode}: {done.last_words}"
        answer: dict[str, object] = self._json(0, done.stdout, failure)
        return answer

    def run(self, plan: Plan, raw_dir: Path, on_event: OnEvent) -> None:
        """Run a plan here, or fetch what an earlier run of the same plan left here.

        Raises
        ------
        UserError
            When the host is busy with somebody else's launch.
        HostLost
            When the agent died, or the raw folder could not be fetched whole.
        """
        if self.recover(plan, raw_dir):
            on_event({"event": "recovered", "host": self.host.name})
            return
        session = self.session()
        try:
            with session:
                session.send(one_line(plan))
                for event in session.events():
                    on_event(event)
        except (HostLost, KeyboardInterrupt) as error:
            raise _with_note(error, self.clean_up(session)) from error
        self.fetch(plan.launch, raw_dir)

    def session(self, *options: str) -> AgentSession:
        """Start an agent that waits for its plan."""
        link = self.machine.start(
            [
                *("run", "-"),
                f"--lease-s={self.host.lease_s:g}",
                f"--lock-timeout-s={self.host.lock_timeout_s:g}",
                *options,
            ]
        )
        return AgentSession(link, self.host.lease_s, self.label)

    def recover(self, plan: Plan, raw_dir: Path) -> bool:
        """Fetch the raw folder of an earlier, unbroken run of the same plan, if there is one."""
        if not self.machine.has_raw_folder(plan.launch):
            return False
        self.fetch(plan.launch, raw_dir)
        if is_usable(plan, raw_dir):
            return True
        shutil.rmtree(raw_dir)
        return False

    def fetch(self, launch: str, raw_dir: Path) -> None:
        """Fetch a raw folder, going on after a cut, and let the host forget it."""
        for left in reversed(range(_FETCHES)):
            try:
                self.machine.fetch(launch, raw_dir)
                break
            except HostLost:
                if not left:
                    raise
        if not self.machine.has_raw_folder(launch):
            return  # Fetching has moved it.
        done = self.machine.call(["forget", launch], _CALL_S)
        if done.returncode != OK:
            # What stays there would be taken for the next attempt's.
            raise HostLost(f"{self.label}: could not remove the raw folder of {launch}")

    def clean_up(self, session: AgentSession) -> str:
        """End what a lost agent left and return what is known of it.

        A live agent ends its own processes within the lease and holds the lock as long.
        """
        if session.is_orderly:
            return "nothing is left running there"
        # The connection may be open and dead: only a new one tells.
        self.machine.close()
        try:
            wait_s = self.host.lease_s + 5.0
            done = self.machine.call(["reap", f"--lock-timeout-s={wait_s:g}"], wait_s + _CALL_S)
        except UserError:
            return (
                "it cannot be reached to look; an agent that lives there ends everything "
                f"within host.lease_s={self.host.lease_s:g}, and 'kvroad stop' makes sure"
            )
        if done.returncode == OK:
            return "nothing is left running there"
        if done.returncode == BUSY:
            return "somebody else has taken the host over, after ending what was left"
        return f"'kvroad stop' did not end all: {done.stdout.strip() or done.last_words}"

    def stop(self, owner: str) -> list[AgentEvent]:
        """End an owner's launch and what earlier ones of it left; return the agent's events."""
        done = self.machine.call(["stop", f"--owner={owner}"], _CALL_S * 2)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        events: list[AgentEvent] = [json.loads(line) for line in lines]
        if done.returncode not in (OK, BUSY):
            left = [pid for event in events for pid in event.get("left", [])]
            raise HostLost(f"{self.label}: could not end {left or done.last_words}")
        return events

    def _json(self, returncode: int, text: str, failure: str) -> Any:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if returncode != 0 or not lines:
            raise HostLost(f"{self.label}: {failure}")
        return json.loads(lines[-1])


def one_line(plan: Plan) -> str:
    """Return the plan as the one line that an agent reads first."""
    return json.dumps(json.loads(dumps(plan)), ensure_ascii=False)


def _with_note(error: BaseException, note: str) -> BaseException:
    if isinstance(error, HostLost):
        return HostLost(f"{error}; {note}")
    return KeyboardInterrupt(note)


def is_usable(plan: Plan, raw_dir: Path) -> bool:
    """Return whether a raw folder is that of an unbroken run of this plan."""
    try:
        found = loads((raw_dir / "plan.json").read_text())
        end = end_of(raw_dir)
    except (OSError, PlanError):
        return False
    is_unbroken = end is not None and end["status"] != "interrupted"
    return is_unbroken and essence(found) == essence(plan)
