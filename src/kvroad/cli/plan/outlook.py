"""Before a run: what is there, what would run in which order, and what each arm is to show.

Nothing here reaches a host: it reads the configuration and the results on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvroad.analysis.saved_study import RAW_NAME, SavedStudy
from kvroad.cli.plan.power import Power, power_of
from kvroad.cli.plan.schedule import Duration, LaunchRow, duration_of, to_run
from kvroad.cli.status import REPORTS, RESULTS
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
from kvroad.study.name import PUBLISHED, study_slug
from kvroad.study.sides import hosts_of, is_split, on_host

__all__ = [
    "ArmOutlook",
    "MatrixRow",
    "Pools",
    "StudyOutlook",
    "next_plans",
    "outlook_of",
]

_SCHEMA = "kvroad.plan/1"


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


@dataclass(frozen=True)
class HostName:
    """A host of the study and how it is reached."""

    name: str
    connection: str


@dataclass(frozen=True)
class Published:
    """An archive beside a report, and how many cells of the study it holds that are not here."""

    archive: str
    cells: int


@dataclass(frozen=True)
class StudyOutlook:
    """All that ``kvroad plan --json`` prints, ``commands`` apart, in its order.

    ``price_per_hour`` is that of the one host, or of each host by its name; ``cost`` is in the
    same currency and None where a price or the time is not known.
    """

    schema: str
    study: str
    host: HostName
    hosts: list[HostName]
    engine: str
    model: str
    baseline: str
    launches: int
    cells: int
    matrix: list[MatrixRow]
    published: Published | None
    to_run: list[LaunchRow]
    time: Duration
    memory: Pools | None
    price_per_hour: float | dict[str, float | None] | None
    cost: float | None
    arms: list[ArmOutlook]
    power: Power


def outlook_of(
    study: Study,
    design: Design,
    plans: Sequence[tuple[Launch, list[Cell], Plan]],
    spread_from: str | None,
) -> StudyOutlook:
    """Return what a study would run and show; ``plans`` holds one of each arm to be shown.

    Raises
    ------
    UserError
        When ``spread_from`` names no study with a spread.
    """
    hosts, rows = hosts_of(study), to_run(study, design, RESULTS)
    prices = {host.name: host.price_per_hour for host in hosts}
    duration = duration_of(design, rows, RESULTS)
    return StudyOutlook(
        schema=_SCHEMA,
        study=study_slug(study),
        host=HostName(study.host.name, study.host.connection),
        hosts=[HostName(host.name, host.connection) for host in hosts],
        engine=study.engine.name,
        model=study.model.name,
        baseline=study.baseline,
        launches=study.launches,
        cells=len(design.cells),
        matrix=_matrix(design, RESULTS),
        published=_published(study, [cell.id for cell in design.cells]),
        to_run=rows,
        time=duration,
        memory=_memory(study, design),
        price_per_hour=study.host.price_per_hour if len(prices) == 1 else prices,
        cost=_cost(prices, duration),
        arms=[_arm_outlook(study, launch, plan) for launch, _, plan in plans],
        power=power_of(study, REPORTS, RESULTS, spread_from),
    )


def _cost(prices: Mapping[str, float | None], duration: Duration) -> float | None:
    """Return what the time of every host costs; None where a price or the time is not known."""
    if duration.seconds is None or None in prices.values():
        return None
    return sum(
        (price or 0.0) * duration.by_host.get(host, 0.0) / 3600 for host, price in prices.items()
    )


def _published(study: Study, cells: list[str]) -> Published | None:
    """Return the report whose raw files hold cells of the study that are not taken in here."""
    report = SavedStudy(study.name, REPORTS / PUBLISHED / study.name)
    if not report.has("cells") or not (archive := report.folder / RAW_NAME).is_file():
        return None
    there = set(report.table("cells")["cell"]) & set(cells)
    missing = [cell for cell in there if outcome_of(RESULTS, cell) is None]
    return Published(str(archive), len(missing)) if missing else None


def _matrix(design: Design, results_dir: Path) -> list[MatrixRow]:
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


def _memory(study: Study, design: Design) -> Pools | None:
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


def _arm_outlook(study: Study, launch: Launch, plan: Plan) -> ArmOutlook:
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
