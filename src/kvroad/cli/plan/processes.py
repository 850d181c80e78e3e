"""The processes of a plan as a terminal shows them: argv and environment without secrets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvroad.evidence.redact import redact_env, redact_text
from kvroad.plan import Plan, Process
from kvroad.study.design import Cell, Launch

__all__ = ["LaunchCommands", "command_lines", "commands_of"]


@dataclass(frozen=True)
class FileSize:
    """A file that the plan brings to the host."""

    path: str
    bytes: int


@dataclass(frozen=True)
class PhaseRow:
    """A phase of a cell and how many pulls it makes."""

    cell: str
    phase: str
    pulls: int


@dataclass(frozen=True)
class ShownProcess(Process):
    """A process without secrets; ``line`` is its argv quoted for a shell."""

    line: str = ""


@dataclass(frozen=True)
class LaunchCommands:
    """What a launch starts on a host, of any engine's plan."""

    launch: str
    arm: str
    prompt_tokens: list[int]
    bind_address: str
    files: list[FileSize]
    processes: list[ShownProcess]
    phases: list[PhaseRow]


def commands_of(launch: Launch, cells: Sequence[Cell], plan: Plan) -> LaunchCommands:
    """Return the processes of a launch's plan, without secrets."""
    return LaunchCommands(
        launch=launch.id,
        arm=launch.arm.label,
        prompt_tokens=[cell.prompt_tokens for cell in cells],
        bind_address=plan.bind_address,
        files=[FileSize(file.path, len(file.text.encode())) for file in plan.files],
        processes=[_shown(process) for process in plan.processes],
        phases=[
            PhaseRow(cell.cell, phase.name, phase.pulls)
            for cell in plan.cells
            for phase in cell.phases
        ],
    )


def _shown(process: Process) -> ShownProcess:
    argv = [redact_text(word) for word in process.argv]
    # Not these words joined: what makes a word a secret may be the word before it.
    line = redact_text(shlex.join(process.argv))
    return ShownProcess(
        **{**vars(process), "argv": argv, "env": redact_env(process.env)}, line=line
    )


def command_lines(commands: Sequence[LaunchCommands]) -> Iterator[str]:
    """Yield the text of ``--show-commands``."""
    for launch in commands:
        lengths = ", ".join(f"{n:,}" for n in launch.prompt_tokens)
        yield f"{launch.launch}: arm {launch.arm}, {lengths} tokens, bound to {launch.bind_address}"
        files = ", ".join(f"{file.path} ({file.bytes} bytes)" for file in launch.files)
        yield f"  files: {files or 'none'}"
        for process in launch.processes:
            yield f"  {process.name}, {_life(process)}:"
            for name, value in sorted(process.env.items()):
                yield f"    {name}={shlex.quote(value)} \\"
            yield f"    {process.line}"
        phases = ", ".join(f"{row.phase} of {row.pulls} pulls" for row in launch.phases)
        yield f"  phases: {phases}"
        yield ""
    yield (
        "{python}, {folder}, {home}, {bind}, {events} and {port:NAME} are filled in on the host;"
        " {also:NAME} is what its variable NAME holds already."
    )


def _life(process: Process) -> str:
    """Say when a process is ready and how it is ended."""
    within = f"within {process.ready_timeout_s:g} s"
    start = "ready once started"
    if process.ready_event:
        start = f"ready at its event {process.ready_event!r} {within}"
    if process.ready_url:
        start = f"ready when {process.ready_url} answers {within}"
    if process.next_after_s is not None:
        start += f" (the next one starts {process.next_after_s:g} s after it)"
    line = process.stop_line
    return f"{start}, ended by {f'the line {line!r}' if line else 'TERM'}"
