"""A launch whose other half runs on another host: the control side says what comes next."""

from __future__ import annotations

import queue
from typing import Any

from kvroad.agent.run import Launch, StepFailed
from kvroad.plan import Phase

__all__ = ["relay"]


def relay(launch: Launch) -> None:
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
        command = _next_command(launch, is_watching=failure is None)
        if isinstance(command, StepFailed):
            failure = command
            launch.events.send("failed", step=failure.step, reason=failure.reason)
            continue
        if command["do"] == "finish":
            if command.get("reason"):
                raise StepFailed(str(command["step"]), str(command["reason"]))
            if failure is not None:
                raise failure
            return
        try:
            answer = _take(launch, command)
        except StepFailed as failed:
            failure = failed
            launch.events.send("failed", step=failed.step, reason=failed.reason)
        else:
            launch.events.send(f"{command['do']}_done", keep=False, **answer)


def _next_command(launch: Launch, *, is_watching: bool) -> dict[str, Any] | StepFailed:
    """Wait for a command; a process that dies meanwhile is a failure of this half."""
    while True:
        try:
            return launch.lease.commands.get(timeout=0.02)
        except queue.Empty:
            try:
                launch.watch("waiting for the other half")
            except StepFailed as failed:
                if is_watching:
                    return failed


def _take(launch: Launch, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "start":
        launch.lay_down(command.get("ports", {}))
        launch.start()
        return {"ports": launch.ports}
    cell, phase = command["cell"], _phase(launch, command)
    if command["do"] == "begin":
        launch.begin(cell, phase)
    elif command["do"] == "ask":
        launch.refuse_errors(phase, launch.ask(phase))
    elif command["do"] == "complete":
        launch.complete(cell, phase)
    elif command["do"] == "check":
        launch.check_road(cell, phase)
    else:
        raise StepFailed("relay", f"unknown command {command['do']!r}")
    return {}


def _phase(launch: Launch, command: dict[str, Any]) -> Phase:
    for cell in launch.plan.cells:
        for phase in cell.phases:
            if (cell.cell, phase.name) == (command.get("cell"), command.get("phase")):
                return phase
    raise StepFailed("relay", f"no phase {command.get('phase')!r} of {command.get('cell')!r}")
