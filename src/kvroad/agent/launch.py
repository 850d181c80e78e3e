"""One launch on the host: lay down, start, ready, phases, stop, prove gone."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvroad.agent.capture import Capture
from kvroad.agent.events import Events
from kvroad.agent.lease import Lease
from kvroad.agent.processes import TAG_VARIABLE, Ledger, end_processes
from kvroad.evidence.redact import redact_env
from kvroad.plan import Phase, Plan, Process

__all__ = ["Launch", "StepFailed", "Stopped"]

_LAST_LINES = 8


class StepFailed(Exception):
    """A step of the launch did not work; the text names step and cause."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class Stopped(Exception):
    """The launch was ended from outside: lease, signal or client."""


@dataclass
class _Running:
    spec: Process
    popen: subprocess.Popen[bytes]
    events_fd: int
    buffer: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)


class Launch:
    """Runs one plan in one folder.

    Parameters
    ----------
    folder
        Empty folder that becomes the raw folder.
    work_dir
        The agent's own folder on the host, for the ledger.
    """

    def __init__(
        self, plan: Plan, folder: Path, work_dir: Path, events: Events, lease: Lease
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.events = events
        self.lease = lease
        self.tag = f"{plan.owner}:{plan.launch}"
        self.ledger = Ledger(work_dir / "ledger" / f"{os.getpid()}.json", self.tag)
        self.capture = Capture(plan.claim, folder / "counters.jsonl")
        self.ports: dict[str, int] = {}
        self._running: dict[str, _Running] = {}
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
        self._lay_down()
        for spec in self.plan.processes:
            self._start(spec)
        for cell in self.plan.cells:
            self._run_cell(cell.cell, cell.phases)

    def end(self, *, is_clean: bool) -> list[int]:
        """End every process; return the pids that could not be ended.

        A clean end asks each process first, in the reverse order of their start, so that
        the one that posted the transfers prints its use counts while its peers live.
        """
        if is_clean:
            for running in reversed(list(self._running.values())):
                self._ask_to_stop(running)
        started = self.ledger.entries
        survivors = end_processes(self.tag, started, os.getpid(), self.plan.stop_timeout_s)
        for running in self._running.values():
            returncode = running.popen.poll()
            self.events.send("exit", process=running.spec.name, returncode=returncode)
        if not survivors:
            self.ledger.path.unlink(missing_ok=True)
        return [s.pid for s in survivors]

    def _lay_down(self) -> None:
        for file in self.plan.files:
            path = self.folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
        for name, number in self.plan.ports.items():
            self.ports[name] = number or _free_port()

    def _start(self, spec: Process) -> None:
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
        running = _Running(spec, popen, read_fd)
        os.set_blocking(read_fd, False)
        self._selector.register(read_fd, selectors.EVENT_READ, running)
        self._running[spec.name] = running
        self.events.send("start", process=spec.name, pid=popen.pid)
        if spec.ready_event is not None:
            step = f"start {spec.name}"
            answer = self._await([spec.name], spec.ready_event, spec.ready_timeout_s, step)
            facts = {k: v for k, v in answer[spec.name].items() if k != "event"}
            self.events.send("ready", process=spec.name, **facts)
            if self.plan.facts_from == spec.name:
                (self.folder / "versions.json").write_text(json.dumps(facts, indent=1))

    def _fill(self, word: str, events_fd: int) -> str:
        """Replace the placeholders of a plan; any other braces stay as they are."""
        word = word.replace("{python}", sys.executable).replace("{folder}", str(self.folder))
        word = word.replace("{events}", str(events_fd))
        for name, number in self.ports.items():
            word = word.replace("{port:" + name + "}", str(number))
        return word

    def _run_cell(self, cell: str, phases: list[Phase]) -> None:
        for phase in phases:
            self.events.send("phase_start", cell=cell, phase=phase.name, pulls=phase.pulls)
            before = self.capture.edge(f"{phase.name}:start", cell)
            answers = self._ask(phase)
            after = self.capture.edge(f"{phase.name}:end", cell)
            self.events.send("phase_end", cell=cell, phase=phase.name)
            self._refuse_errors(phase, answers)
            if phase.payload_bytes is not None:
                self._check_road(cell, phase, before, after)

    def _refuse_errors(self, phase: Phase, answers: dict[str, dict[str, Any]]) -> None:
        for name, answer in answers.items():
            if answer.get("error"):
                raise StepFailed(f"{phase.name} in {name}", str(answer["error"]))

    def _check_road(
        self, cell: str, phase: Phase, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        assert phase.payload_bytes is not None
        checks = self.capture.check(before, after, phase.payload_bytes)
        for check in checks:
            self.events.send("check", cell=cell, phase=phase.name, **check.as_event())
        wrong = [f"{c.where}: {c.seen}, expected {c.expected}" for c in checks if not c.ok]
        if wrong:
            raise StepFailed("road", "; ".join(wrong))

    def _ask(self, phase: Phase) -> dict[str, dict[str, Any]]:
        command = phase.command
        line = json.dumps(command.line).encode() + b"\n"
        for name in command.processes:
            stdin = self._running[name].popen.stdin
            assert stdin is not None
            try:
                stdin.write(line)
                stdin.flush()
            except BrokenPipeError:
                raise self._died(name, phase.name) from None
        return self._await(command.processes, command.answer_event, phase.timeout_s, phase.name)

    def _await(
        self, names: list[str], event: str, timeout_s: float, step: str
    ) -> dict[str, dict[str, Any]]:
        """Wait until each named process has sent the event; forward progress meanwhile."""
        deadline = time.monotonic() + timeout_s
        answers: dict[str, dict[str, Any]] = {}
        while len(answers) < len(names):
            reason = self.lease.stop_reason()
            if reason is None and self.events.is_client_lost:
                reason = "the client is gone"
            if reason is not None:
                raise Stopped(reason)
            for running in self._read_events():
                for row in running.events:
                    if row.get("event") == event and running.spec.name in names:
                        answers[running.spec.name] = row
                    elif row.get("event") == "progress":
                        fields = {k: v for k, v in row.items() if k != "event"}
                        self.events.send(
                            "progress", keep=False, process=running.spec.name, step=step, **fields
                        )
                    elif row.get("event") == "error":
                        raise StepFailed(step, f"{running.spec.name}: {row.get('text')}")
                running.events.clear()
            for name, running in self._running.items():
                if running.popen.poll() is not None and name not in answers:
                    raise self._died(name, step)
            if time.monotonic() > deadline:
                missing = ", ".join(n for n in names if n not in answers)
                raise StepFailed(step, f"no answer from {missing} within {timeout_s:g} s")
        return answers

    def _read_events(self) -> list[_Running]:
        ready = []
        for key, _ in self._selector.select(timeout=0.1):
            running: _Running = key.data
            chunk = os.read(running.events_fd, 1 << 16)
            if not chunk:
                self._selector.unregister(running.events_fd)
                continue
            *lines, running.buffer = (running.buffer + chunk).split(b"\n")
            running.events += [json.loads(line) for line in lines if line]
            ready.append(running)
        return ready

    def _died(self, name: str, step: str) -> StepFailed:
        running = self._running[name]
        # The last event of a dying process says more than its exit status.
        self._read_events()
        for row in running.events:
            if row.get("event") == "error":
                return StepFailed(step, f"{name}: {row.get('text')}")
        returncode = running.popen.wait()
        last = _last_lines(self.folder / f"{name}.log")
        return StepFailed(step, f"{name} ended with status {returncode}: {last}")

    def _ask_to_stop(self, running: _Running) -> None:
        """Let a process end by its own means, so that it can print its use counts."""
        stdin = running.popen.stdin
        if running.popen.poll() is not None or stdin is None:
            return
        try:
            if running.spec.stop_line is not None:
                stdin.write(running.spec.stop_line.encode() + b"\n")
            stdin.close()
            if running.spec.stop_line is not None:
                running.popen.wait(self.plan.stop_timeout_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
