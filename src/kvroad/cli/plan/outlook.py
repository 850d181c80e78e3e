"""Before a run: what is there, what would run in which order, and what each arm is to show.

Nothing here reaches a host: it reads the configuration and the results on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvroad.engines import largest_launch, plan_of, pool_bytes
from kvroad.measure.missing import missing_launches
from kvroad.plan import Claim, Plan
from kvroad.proof.witness import witness_kinds
from kvroad.results import outcome_of
from kvroad.study.arms import lengths_of
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study
from kvroad.study.kinds import ENGINES
from kvroad.study.kv_layout import pull_layout
from kvroad.study.sides import is_split, on_host

__all__ = [
    "ArmOutlook",
    "LaunchRow",
    "MatrixRow",
    "Pools",
    "PullSize",
    "expected",
    "matrix",
    "memory",
    "next_plans",
    "to_run",
]


@dataclass
class MatrixRow:
    """An arm at a prompt length, with the number of its cells in each state.

    ``reason`` is that of the first cell that is refused or failed, else empty.
    """

    arm: str
    prompt_tokens: int
    proven: int = 0
    refused: int = 0
    failed: int = 0
    missing: int = 0
    reason: str = ""


@dataclass(frozen=True)
class LaunchRow:
    """A launch that would run now, with the prompt lengths of its open cells."""

    launch: str
    arm: str
    block: int
    host: str
    prompt_tokens: list[int]


@dataclass(frozen=True)
class Pools:
    """What the pools of the launch with the largest ones take on each side."""

    kind: str
    bytes_per_side: int
    ranks_per_side: int
    is_one_host: bool
    arm: str
    prompt_tokens: int


@dataclass(frozen=True)
class PullSize:
    """What one rank pulls of a prompt."""

    prompt_tokens: int
    descriptors: int
    descriptor_bytes: int
    bytes: int


@dataclass(frozen=True)
class ArmOutlook:
    """What an arm claims, and which witnesses are to agree, as its plan has it."""

    arm: str
    transport: str
    roads: list[str]
    operation: str
    memory: str
    ucx_tls: str | None
    pulls: list[PullSize]
    witnesses: list[dict[str, str]]


def matrix(design: Design, results_dir: Path) -> list[MatrixRow]:
    """Return a row per arm and prompt length, arms in the design's order."""
    rows: dict[tuple[str, int], MatrixRow] = {}
    for cell in sorted(design.cells, key=lambda c: (list(design.arms).index(c.arm), c.block)):
        row = rows.setdefault(
            (cell.arm, cell.prompt_tokens), MatrixRow(cell.arm, cell.prompt_tokens)
        )
        outcome = outcome_of(results_dir, cell.id) or {"outcome": "missing"}
        state = str(outcome["outcome"])
        setattr(row, state, getattr(row, state) + 1)
        if state in ("refused", "failed") and not row.reason:
            row.reason = str(outcome.get("reason", ""))
    return list(rows.values())


def to_run(study: Study, design: Design, results_dir: Path) -> list[LaunchRow]:
    """Return the launches that the workflow would run now, in their order."""
    return [
        LaunchRow(
            launch.id,
            launch.arm.label,
            launch.block,
            launch.host,
            [cell.prompt_tokens for cell in cells],
        )
        for launch, cells in missing_launches(study, design, results_dir)
    ]


def memory(study: Study, design: Design) -> Pools | None:
    """Return what the pools of the largest launch take; None where the engine has its own."""
    if ENGINES[study.engine.name].serves:
        return None
    largest = largest_launch(study, design)
    return Pools(
        kind=study.engine.memory,
        bytes_per_side=pool_bytes(study, largest) // 2,
        ranks_per_side=largest.arm.engine.rank_pairs,
        is_one_host=not is_split(study.host),
        arm=largest.arm.label,
        prompt_tokens=max(cell.prompt_tokens for cell in largest.cells),
    )


def next_plans(
    study: Study, design: Design, results_dir: Path, launch_id: str | None = None
) -> list[tuple[Launch, list[Cell], Plan]]:
    """Return a plan per arm, of its next missing launch or else its first; or of one launch.

    Raises
    ------
    KeyError
        When the study has no launch of that id.
    """
    if launch_id is not None:
        chosen = [(design.launch(launch_id), design.launch(launch_id).cells)]
    else:
        first: dict[str, tuple[Launch, list[Cell]]] = {}
        everything = [(launch, launch.cells) for launch in design.launches]
        for launch, cells in [*missing_launches(study, design, results_dir), *everything]:
            first.setdefault(launch.arm.label, (launch, cells))
        chosen = [first[arm] for arm in design.arms]
    return [
        (launch, cells, plan_of(on_host(study, launch.host), launch, cells))
        for launch, cells in chosen
    ]


def expected(study: Study, launch: Launch, plan: Plan) -> ArmOutlook:
    """Return what an arm claims, of a plan of one of its launches."""
    claim, arm = plan.claim, launch.arm
    layouts = {
        tokens: pull_layout(study.model, arm.engine, arm.workload, tokens)
        for tokens in lengths_of(study, arm.label)
    }
    return ArmOutlook(
        arm=arm.label,
        transport=claim.transport,
        roads=claim.roads,
        operation=claim.operation,
        memory=claim.memory,
        ucx_tls=claim.environment.get("UCX_TLS"),
        pulls=[
            PullSize(tokens, layout.n_descriptors, layout.descriptor_bytes, layout.n_bytes)
            for tokens, layout in layouts.items()
        ],
        witnesses=_witnesses(claim),
    )


def _witnesses(claim: Claim) -> list[dict[str, str]]:
    return [
        {"name": kind.name, "expected": text}
        for kind in witness_kinds()
        if kind.applies(claim) and (text := kind.expected(claim))
    ]
