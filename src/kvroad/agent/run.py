"""One launch on the host: lay down, start, ready, phases, stop, prove gone."""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import subprocess
import sys
import time
import uuid
from collections.abc import Container, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvroad.agent.capture import Capture
from kvroad.agent.events import Events
from kvroad.agent.lease import Lease
from kvroad.agent.processes import TAG_VARIABLE, Ledger, end_processes
from kvroad.agent.readiness import free_port, is_taken, status_of
from kvroad.agent.started import StartedProcess, last_lines
from kvroad.evidence.counter import Edge
from kvroad.evidence.events import ProcessEvent
from kvroad.evidence.redact import redact_env
from kvroad.plan import Phase, Plan, Process

__all__ = ["Run", "StepFailed", "Stopped"]

_ASK_EVERY_S = 0.5
_PORT = re.compile(r"\{port:([\w-]+)\}")
_ALSO = re.compile(r"\{also:(\w+)\}")
# Between TERM and KILL for what a process left behind that has ended by itself.
_STRAGGLER_S = 3.0


class StepFailed(Exception):
    """A step of the launch did not work; the text names step and cause."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class Stopped(Exception):
    """The launch was ended from outside: lease, signal or client."""


class Run:
    """Runs one plan in one folder.

    Parameters
    ----------
    folder
        Empty folder that becomes the raw folder.
    ledger
        The file in the agent's work folder that will name the processes.
    boot_id
        The host's current boot.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        ledger: Path,
        boot_id: str | None,
        events: Events,
        lease: Lease,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.events = events
        self.lease = lease
        # The same launch may run for the same owner in another work folder of this host.
        self.tag = f"{plan.owner}:{plan.launch}:{uuid.uuid4().hex[:12]}"
        self.ledger = Ledger(ledger, self.tag, boot_id)
        self.capture = Capture(plan.claim, folder / "counters.jsonl")
        self.ports: dict[str, int] = {}
        self._edges: list[Edge] = []
        self._running: dict[str, StartedProcess] = {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run the plan to its end.

        Raises
        ------
        StepFailed
            When a process does not start, get ready or answer.
        Stopped
            When the lease ended or a signal came.
        """
        self.lay_down()
        self.start()
        for cell in self.plan.cells:
            for phase in cell.phases:
                self._run_phase(cell.cell, phase)

    def lay_down(self, ports: Mapping[str, int] | None = None) -> None:
        """Write the plan's files and choose the ports that neither it nor ``ports`` names."""
        for file in self.plan.files:
            path = self.folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
        self.ports.update(ports or {})
        try:
            for name, number in self.plan.ports.items():
                if name not in self.ports:
                    self.ports[name] = number or free_port(
                        self.plan.bind_address, self.ports.values()
                    )
        except OSError as error:
            raise StepFailed("ports", f"address {self.plan.bind_address}: {error}") from error
        # On disk before anything starts: the tag alone finds what a killed agent left.
        self.ledger.write()

    def start(self) -> None:
        """Start the processes one after the other, each when the one before is ready.

        Or so many seconds after it, where the plan says so: then both get ready side by side.
        """
        waiting: list[tuple[Process, str]] = []
        for spec in self.plan.processes:
            waiting.append((spec, self._start(spec)))
            if spec.next_after_s is not None and spec is not self.plan.processes[-1]:
                self._pause(spec, spec.next_after_s)
                continue
            while waiting:
                self._await_ready(*waiting.pop(0))
            self.ledger.note(os.getpid())

    def _pause(self, spec: Process, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.watch(f"start {spec.name}")

    def end(self, *, is_clean: bool) -> list[int]:
        """End every process; return the pids that could not be ended.

        A clean end asks each process first, in the reverse order of their start, so that
        the one that posted the transfers prints its use counts while its peers live.
        """
        if is_clean:
            for running in reversed(list(self._running.values())):
                running.ask_to_stop(self.plan.stop_timeout_s, self.lease.stop_reason)
        is_asked = all(r.popen.poll() is not None for r in self._running.values())
        longest_s = min(self.plan.stop_timeout_s, _STRAGGLER_S if is_asked else math.inf)
        grace_s = self.lease.grace_s(longest_s)
        survivors = end_processes(self.ledger, os.getpid(), grace_s)
        for running in self._running.values():
            returncode = running.popen.poll()
            self.events.send("exit", process=running.spec.name, returncode=returncode)
        if not survivors:
            self.ledger.path.unlink(missing_ok=True)
        return [s.pid for s in survivors]

    def _start(self, spec: Process) -> str:
        """Start a process; return the address that will tell of its readiness, if there is one."""
        url = self._fill(spec.ready_url, -1) if spec.ready_url else ""
        if url and is_taken(url):
            raise StepFailed(
                f"start {spec.name}", f"another program answers at {url}: end it, or take a port"
            )
        read_fd, write_fd = os.pipe()
        argv = [self._fill(word, write_fd) for word in spec.argv]
        requested = {k: self._fill(v, write_fd) for k, v in spec.env.items()}
        environment = {**os.environ, **requested}
        environment.update({TAG_VARIABLE: self.tag, "SPT_NOENV": "1"})
        (self.folder / f"{spec.name}.environment.json").write_text(
            json.dumps(redact_env(requested), indent=1, sort_keys=True)
        )
        log = open(self.folder / f"{spec.name}.log", "wb")  # noqa: SIM115 (closed below)
        try:
            popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=environment,
                pass_fds=[write_fd],
                start_new_session=True,
            )
        except OSError as error:
            raise StepFailed(f"start {spec.name}", str(error)) from error
        finally:
            log.close()
            os.close(write_fd)
        self.ledger.add(popen.pid)
        running = StartedProcess(spec, popen, read_fd)
        self._selector.register(read_fd, selectors.EVENT_READ, running)
        self._running[spec.name] = running
        self.events.send("start", process=spec.name, pid=popen.pid)
        return url

    def _await_ready(self, spec: Process, url: str) -> None:
        running = self._running[spec.name]
        if url:
            self._await_url(spec, url)
            running.is_ready = True
            self.events.send("ready", process=spec.name)
        if spec.ready_event is not None:
            step = f"start {spec.name}"
            answer = self._await([spec.name], spec.ready_event, spec.ready_timeout_s, step)
            ready = answer[spec.name]
            # Versions and the like, under names of the program's own.
            facts: Any = {k: v for k, v in ready.items() if k not in ("event", "ports")}
            self.ports.update(ready.get("ports", {}))
            running.is_ready = True
            self.events.send("ready", process=spec.name, **facts)
            if self.plan.facts_from == spec.name:
                (self.folder / "versions.json").write_text(json.dumps(facts, indent=1))

    def _await_url(self, spec: Process, url: str) -> None:
        """Wait until an address answers; the process that should must not end meanwhile."""
        step = f"start {spec.name}"
        deadline = time.monotonic() + spec.ready_timeout_s
        asked_at, status = 0.0, "no answer"
        while True:
            self.watch(step)
            if time.monotonic() - asked_at > _ASK_EVERY_S:
                status = status_of(url)
                if status == "200":
                    return
                asked_at = time.monotonic()
            if time.monotonic() > deadline:
                last = last_lines(self.folder / f"{spec.name}.log")
                waited = f"not ready within {spec.ready_timeout_s:g} s ({url}: {status})"
                raise StepFailed(step, f"{spec.name} {waited}: {last}")

    def _fill(self, word: str, events_fd: int) -> str:
        """Replace the placeholders of a plan; any other braces stay as they are."""
        word = word.replace("{python}", sys.executable).replace("{folder}", str(self.folder))
        word = word.replace("{home}", os.path.expanduser("~"))  # noqa: PTH111 (str.replace)
        word = _ALSO.sub(lambda found: _also(found[1]), word)
        word = word.replace("{events}", str(events_fd)).replace("{bind}", self.plan.bind_address)
        return _PORT.sub(lambda found: str(self.ports.get(found[1], 0)), word)

    def _run_phase(self, cell: str, phase: Phase) -> None:
        self.begin(cell, phase)
        answers = self.ask(phase)
        self.complete(cell, phase)
        self.refuse_errors(phase, answers)
        moved = [int(a["payload_bytes"]) for a in answers.values() if "payload_bytes" in a]
        self.check_road(cell, phase, sum(moved) if moved else None)

    def begin(self, cell: str, phase: Phase) -> None:
        """Read the counters in front of a phase."""
        self.ledger.note(os.getpid())
        self.events.send("phase_start", cell=cell, phase=phase.name, pulls=phase.pulls)
        self._edges = [self.capture.edge(f"{phase.name}:start", cell)]

    def complete(self, cell: str, phase: Phase) -> None:
        """Read the counters behind a phase."""
        self._edges.append(self.capture.edge(f"{phase.name}:end", cell))
        self.events.send("phase_end", cell=cell, phase=phase.name)

    def refuse_errors(self, phase: Phase, answers: Mapping[str, ProcessEvent]) -> None:
        """Raise StepFailed for the first answer that tells of an error."""
        for name, answer in answers.items():
            if answer.get("error"):
                raise StepFailed(f"{phase.name} in {name}", str(answer["error"]))

    def check_road(self, cell: str, phase: Phase, moved_bytes: int | None = None) -> None:
        """Raise StepFailed where the counters of a phase contradict the claim.

        ``moved_bytes`` is what the load says that it moved, where the plan cannot know.
        """
        payload = moved_bytes if phase.payload_bytes is None else phase.payload_bytes
        if payload is None:
            return
        before, after = self._edges
        checks = self.capture.check(before, after, payload)
        for check in checks:
            self.events.send("check", cell=cell, phase=phase.name, **asdict(check))
        wrong = [f"{c.where}: {c.seen}, expected {c.expected}" for c in checks if not c.ok]
        if wrong:
            raise StepFailed("road", "; ".join(wrong))

    def ask(self, phase: Phase) -> dict[str, ProcessEvent]:
        """Send the phase's command and return the answer of each process."""
        command = phase.command
        line = json.dumps(command.line).encode() + b"\n"
        for name in command.processes:
            try:
                self._running[name].send(line)
            except BrokenPipeError:
                raise self._died(name, phase.name) from None
        return self._await(command.processes, command.answer_event, phase.timeout_s, phase.name)

    def _await(
        self, names: list[str], event: str, timeout_s: float, step: str
    ) -> dict[str, ProcessEvent]:
        """Wait until each named process has sent the event; forward progress meanwhile."""
        deadline = time.monotonic() + timeout_s
        answers: dict[str, ProcessEvent] = {}
        while len(answers) < len(names):
            for name, row in self.watch(step, answered=answers):
                if row.get("event") == event and name in names:
                    answers[name] = row
            if time.monotonic() > deadline:
                missing = ", ".join(n for n in names if n not in answers)
                raise StepFailed(step, f"no answer from {missing} within {timeout_s:g} s")
        return answers

    def watch(self, step: str, answered: Container[str] = ()) -> list[tuple[str, ProcessEvent]]:
        """Wait a moment and return what the processes said; forward their progress.

        Raises
        ------
        StepFailed
            When a process reports an error, or ended without being in ``answered``.
        Stopped
            When the lease ended or a signal came.
        """
        reason = self.lease.stop_reason()
        if reason is None and self.events.is_client_lost:
            reason = "the client is gone"
        if reason is not None:
            raise Stopped(reason)
        said: list[tuple[str, ProcessEvent]] = []
        self._read_events()
        for running in self._running.values():
            for row in running.events:
                if row.get("event") == "progress":
                    fields = {k: v for k, v in row.items() if k != "event"}
                    self.events.send(
                        "progress", keep=False, process=running.spec.name, step=step, **fields
                    )
                elif row.get("event") == "error":
                    raise StepFailed(step, f"{running.spec.name}: {row.get('text')}")
                else:
                    said.append((running.spec.name, row))
            running.events.clear()
        speakers = {name for name, _ in said}
        for name, running in self._running.items():
            if running.popen.poll() is not None and name not in speakers and name not in answered:
                raise self._died(name, step)
        return said

    def _read_events(self) -> None:
        for key, _ in self._selector.select(timeout=0.1):
            running: StartedProcess = key.data
            if not running.read_events():
                self._selector.unregister(running.events_fd)

    def _died(self, name: str, step: str) -> StepFailed:
        # The last event of a dying process says more than its exit status.
        self._read_events()
        why = self._running[name].last_words(self.folder / f"{name}.log")
        return StepFailed(step, f"{name}{why}")


def _also(name: str) -> str:
    """Return what follows in a search path that the agent's environment has already."""
    value = os.environ.get(name)
    return f"{os.pathsep}{value}" if value else ""
