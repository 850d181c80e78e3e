"""The plan that both sides share: what the host agent runs, and in which words it answers.

Standard library only, Python 3.10 or newer: this file travels to the host inside the
agent. A plan is JSON, so that it can be read, reviewed and carried by hand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "PLAN_VERSION",
    "Claim",
    "Command",
    "File",
    "Label",
    "LogLine",
    "Phase",
    "Plan",
    "PlanError",
    "PlannedCell",
    "Process",
    "Serving",
    "claim_and_cells",
    "dumps",
    "essence",
    "first_difference",
    "loads",
]

PLAN_VERSION = 1


class PlanError(ValueError):
    """A plan that this version cannot run."""


@dataclass(frozen=True)
class File:
    """A text file laid down in the launch folder before anything starts."""

    path: str
    text: str


@dataclass(frozen=True)
class Process:
    """One process of a launch.

    Parameters
    ----------
    argv
        Words handed to ``execve`` as they are; ``{python}`` is the host's interpreter,
        ``{home}`` the home folder there, ``{folder}`` the launch folder, ``{bind}`` the
        plan's ``bind_address``, ``{events}`` the file descriptor for JSON events.
        ``{port:NAME}`` is a port of the plan, or one that a process before this one told in
        the ``ports`` of its ready event; else 0, which means any that is free.
        ``{also:NAME}`` in a search path is what the agent's variable of that name holds.
    env
        Variables set on top of the agent's environment.
    ready_event
        Name of the JSON event that says the process is ready; None: ready once started.
    ready_url
        Address that answers with status 200 once the process is ready, for programs that
        know nothing of events; its port must be free before the process starts.
    stop_line
        Line written to its standard input to end it cleanly; None: TERM.
    next_after_s
        Of a process with a ``ready_url``: seconds after which the next one starts though this
        one is not ready yet; None:
        once it is ready.
    side
        ``prefill`` or ``decode``: on which host it runs where the two are apart.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    ready_event: str | None = None
    ready_timeout_s: float = 120.0
    stop_line: str | None = None
    side: str | None = None
    ready_url: str | None = None
    next_after_s: float | None = None


@dataclass(frozen=True)
class Command:
    """One line of JSON for the standard input of each named process, and the answer awaited.

    What ``line`` holds is between an engine and its programs.
    """

    processes: list[str]
    line: dict[str, Any]
    answer_event: str


@dataclass(frozen=True)
class Phase:
    """A stretch of load with the counters read at both of its edges.

    ``payload_bytes`` is what a check after the phase compares the counters with; None
    means the ``payload_bytes`` of the answers, and no check where they name none.
    """

    name: str
    command: Command
    timeout_s: float
    pulls: int = 0
    payload_bytes: int | None = None


@dataclass(frozen=True)
class PlannedCell:
    """The phases of one cell, warm-up first."""

    cell: str
    prompt_tokens: int
    phases: list[Phase]


@dataclass(frozen=True)
class LogLine:
    """A text that a process's log must hold, or must not, for an option to count as set."""

    option: str
    process: str
    text: str
    is_there: bool = True


@dataclass(frozen=True)
class Label:
    """A label of an engine's Prometheus metric that tells how an option is set."""

    option: str
    metric: str
    label: str
    value: str


@dataclass(frozen=True)
class Serving:
    """What a launch of serving engines claims beyond its road.

    Parameters
    ----------
    engine_ranks
        Processes of the pulling engine that each print tables of their own.
    largest_descriptor_bytes
        NIXL merges neighbours, so that a descriptor may be as large as a whole pull.
    output_tokens
        Tokens that every answer must have.
    failed_share_at_most
        Share of failed requests above which a phase is no data.
    log_lines, labels
        How the engines themselves tell that an option took effect.
    is_aggregated
        One engine serves alone: its proof is that nothing was transferred.
    num_threads
        Posting threads asked for; with 0, one UCX worker alone prints a table.
    """

    engine_ranks: int
    largest_descriptor_bytes: int
    output_tokens: int
    failed_share_at_most: float = 0.0
    log_lines: list[LogLine] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    is_aggregated: bool = False
    num_threads: int | None = None


@dataclass(frozen=True)
class Claim:
    """The road a launch claims, and what is needed to prove it.

    ``interfaces``, ``rdma_devices`` and ``gpus`` are the counters read at each edge;
    ``counters`` names the kinds that a payload on this road moves. ``side`` is the end of
    the road that this host is, ``prefill`` sends and ``decode`` receives; None: both.
    ``backend`` is what moves the bytes; ``environment`` are the variables that it is to have.
    ``serving`` is there for serving engines, whose transfers are told by vLLM's metrics.
    """

    transport: str
    roads: list[str]
    operation: str
    memory: str
    descriptor_bytes: int
    environment: dict[str, str]
    counters: list[str] = field(default_factory=list)
    link_layer: str | None = None
    interfaces: list[str] = field(default_factory=list)
    rdma_devices: list[str] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    ranks: int = 1
    use_counts: bool = True
    carried_at_least: float = 0.95
    not_carried_at_most: float = 0.05
    idle_bytes_per_s: float = 2_000_000.0
    side: str | None = None
    serving: Serving | None = None
    backend: str = "ucx"

    @property
    def transfers(self) -> str:
        """What its transfers are called in a sentence."""
        return "reads" if self.operation == "read" else "writes"

    @property
    def is_alone(self) -> bool:
        """Whether one engine serves alone, so that no road is claimed."""
        return self.serving is not None and self.serving.is_aggregated


@dataclass(frozen=True)
class Plan:
    """One launch: processes started one after the other, then the cells in order.

    ``packages`` are distributions whose versions belong to the facts of the host.
    """

    launch: str
    arm: str
    owner: str
    claim: Claim
    processes: list[Process]
    cells: list[PlannedCell]
    files: list[File] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    bind_address: str = "127.0.0.1"
    stop_timeout_s: float = 20.0
    facts_from: str | None = None
    packages: list[str] = field(default_factory=list)
    version: int = PLAN_VERSION


def dumps(plan: Plan) -> str:
    """Return the plan as indented JSON with sorted keys."""
    return json.dumps(dataclasses.asdict(plan), indent=1, sort_keys=True, ensure_ascii=False)


def claim_and_cells(text: str) -> tuple[Claim, list[PlannedCell]]:
    """Read what judging needs of a plan of any version; fields that are not known are left out.

    Raises
    ------
    ValueError
        When the text is no plan, or something that every plan has is missing.
    """
    data = _object(text)
    claim = _build(Claim, data.get("claim"), "claim", is_strict=False)
    cells = _value(list[PlannedCell], data.get("cells"), "cells", is_strict=False)
    assert isinstance(claim, Claim)
    return claim, cells


def loads(text: str) -> Plan:
    """Read a plan back.

    Raises
    ------
    PlanError
        When the text is no plan, or one of another version.
    """
    try:
        data = _object(text)
    except ValueError as error:
        raise PlanError(f"not a plan: {error}") from error
    if data.get("version") != PLAN_VERSION:
        found = data.get("version")
        raise PlanError(f"plan version {found!r} is not the agent's version {PLAN_VERSION}")
    plan = _build(Plan, data, "plan")
    assert isinstance(plan, Plan)
    return plan


def _object(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise PlanError("no JSON object")
    return data


def essence(plan: Plan) -> Plan:
    """Return a plan without what is not measured: two plans with one essence are one plan.

    Left out are owner, ports, addresses, time-outs and tolerances, and the programs that
    travel with it: a change of code is told by the version of the measurement.
    """
    return replace(
        plan,
        owner="",
        ports={},
        bind_address="",
        stop_timeout_s=0.0,
        packages=[],
        claim=replace(
            plan.claim, carried_at_least=0.0, not_carried_at_most=0.0, idle_bytes_per_s=0.0
        ),
        processes=[replace(p, ready_timeout_s=0.0, next_after_s=None) for p in plan.processes],
        cells=[
            replace(cell, phases=[replace(phase, timeout_s=0.0) for phase in cell.phases])
            for cell in plan.cells
        ],
        files=sorted(
            (file for file in plan.files if not file.path.endswith(".py")),
            key=lambda file: file.path,
        ),
    )


def first_difference(first: object, second: object, where: str = "plan") -> str | None:
    """Return where two plans differ first and how, in one line; None where they are equal."""
    if dataclasses.is_dataclass(first) and type(first) is type(second):
        first, second = vars(first), vars(second)
    if isinstance(first, dict) and isinstance(second, dict):
        keys = sorted({*first, *second})
        pairs = [(f"{where}.{k}", first.get(k), second.get(k)) for k in keys]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(first, second))]
    else:
        return None if first == second else f"{where}: {first!r} is not {second!r}"
    return next(filter(None, (first_difference(a, b, at) for at, a, b in pairs)), None)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(cls: Any, data: Any, where: str, *, is_strict: bool = True) -> Any:
    if not isinstance(data, dict):
        raise PlanError(f"{where}: no JSON object")
    hints = _hints(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown and is_strict:
        raise PlanError(f"{where}: unknown field {unknown[0]!r}")
    fields = {
        name: _value(hints[name], value, f"{where}.{name}", is_strict=is_strict)
        for name, value in data.items()
        if name in hints
    }
    try:
        return cls(**fields)
    except TypeError as error:
        raise PlanError(f"{where}: {error}") from error


def _value(hint: Any, value: Any, where: str, *, is_strict: bool) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in args if a is not type(None))
        return None if value is None else _value(inner, value, where, is_strict=is_strict)
    if origin is list:
        if not isinstance(value, list):
            raise PlanError(f"{where}: no list")
        inner = args[0]
        return [_value(inner, v, f"{where}[{i}]", is_strict=is_strict) for i, v in enumerate(value)]
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where, is_strict=is_strict)
    return value
