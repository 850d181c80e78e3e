"""A launch whose other half runs on another host: the control side says what comes next."""

from __future__ import annotations

import queue

from kvroad.agent.run import Run, StepFailed
from kvroad.evidence.events import RelayCommand
from kvroad.plan import Phase

__all__ = ["relay"]


def relay(run: Run) -> None:
    """Run this host's half of a plan on commands from the input.

    ``{"do": "start", "ports": {...}}`` starts the processes, with the ports that the other
    half chose; ``begin``, ``ask``, ``complete`` and ``check`` with ``cell`` and ``phase``
    take a phase's steps; ``finish`` ends, with ``step`` and ``reason`` where the launch
    failed elsewhere. Each is answered by an event of its name with ``_done``; a failure by
    the event ``failed``, after which only ``finish`` is awaited.

    Raises
    ------
    StepFailed
        At the end, when a step failed here or elsewhere.
    """
    failure: StepFailed | None = None
    while True:
        command = _next_command(run, is_watching=failure is None)
        if isinstance(command, StepFailed):
            failure = command
            run.events.send("failed", step=failure.step, reason=failure.reason)
            continue
        if command["do"] == "finish":
            if command.get("reason"):
                raise StepFailed(str(command["step"]), str(command["reason"]))
            if failure is not None:
                raise failure
            return
        try:
            answer = _take(run, command)
        except StepFailed as failed:
            failure = failed
            run.events.send("failed", step=failed.step, reason=failed.reason)
        else:
            run.events.send(f"{command['do']}_done", keep=False, **answer)


def _next_command(run: Run, *, is_watching: bool) -> RelayCommand | StepFailed:
    """Wait for a command; a process that dies meanwhile is a failure of this half."""
    while True:
        try:
            return run.lease.commands.get(timeout=0.02)
        except queue.Empty:
            try:
                run.watch("waiting for the other half")
            except StepFailed as failed:
                if is_watching:
                    return failed


def _take(run: Run, command: RelayCommand) -> dict[str, dict[str, int]]:
    """Take one step and return what else its answer tells: the ports, after the start."""
    if command["do"] == "start":
        run.lay_down(command.get("ports", {}))
        run.start()
        return {"ports": run.ports}
    cell, phase = command["cell"], _phase(run, command)
    if command["do"] == "begin":
        run.begin(cell, phase)
    elif command["do"] == "ask":
        run.refuse_errors(phase, run.ask(phase))
    elif command["do"] == "complete":
        run.complete(cell, phase)
    elif command["do"] == "check":
        run.check_road(cell, phase)
    else:
        raise StepFailed("relay", f"unknown command {command['do']!r}")
    return {}


def _phase(run: Run, command: RelayCommand) -> Phase:
    for cell in run.plan.cells:
        for phase in cell.phases:
            if (cell.cell, phase.name) == (command.get("cell"), command.get("phase")):
                return phase
    raise StepFailed("relay", f"no phase {command.get('phase')!r} of {command.get('cell')!r}")
