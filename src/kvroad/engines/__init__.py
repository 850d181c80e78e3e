"""Planners, one file each: from a launch to a plan; beside them the programs that a plan starts."""

from __future__ import annotations

import getpass
import platform
from dataclasses import dataclass, replace
from pathlib import Path

from kvroad.plan import Claim, Plan
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study
from kvroad.study.kinds import BACKENDS, ENGINES
from kvroad.study.kv_layout import KvLayout, pull_layout

__all__ = [
    "PhaseLoad",
    "claim_of",
    "largest_launch",
    "layout_of",
    "loads_of",
    "owner_of",
    "plan_of",
    "pool_bytes",
]


def plan_of(study: Study, launch: Launch, cells: list[Cell]) -> Plan:
    """Return the plan of a launch for the cells of it that are to be measured.

    Raises
    ------
    UserError
        When there is no engine of that name, or the host has not what the plan needs.
    """
    kind = ENGINES[launch.arm.engine.name]
    return replace(kind.plan(study, launch, cells, owner_of(study)), packages=list(kind.packages))


def owner_of(study: Study) -> str:
    """Return who asks for a launch, as others read it who find the host busy."""
    return f"{getpass.getuser()}@{platform.node()} study {study.name} in {Path.cwd()}"


def layout_of(study: Study, launch: Launch, prompt_tokens: int) -> KvLayout:
    """Return the layout of one rank's pull in this launch."""
    return pull_layout(study.model, launch.arm.engine, launch.arm.workload, prompt_tokens)


def pool_bytes(study: Study, launch: Launch, concurrency: int | None = None) -> int:
    """Return the bytes of all pools of a launch: both halves of every rank pair.

    ``concurrency`` is how many pulls each of them holds; None: as the launch asks for.
    """
    longest = max(cell.prompt_tokens for cell in launch.cells)
    n_pulls = launch.arm.workload.concurrency if concurrency is None else concurrency
    pull_bytes = layout_of(study, launch, longest).n_pool_bytes
    return 2 * launch.arm.engine.rank_pairs * n_pulls * pull_bytes


def largest_launch(study: Study, design: Design) -> Launch:
    """Return the launch whose pools take the most bytes."""
    return max(design.launches, key=lambda launch: pool_bytes(study, launch))


def claim_of(study: Study, launch: Launch, layout: KvLayout) -> Claim:
    """Return what a launch claims of its road, for pulls of this layout."""
    arm, host = launch.arm, study.host
    return Claim(
        transport=arm.transport_name,
        roads=list(arm.transport.roads),
        operation=arm.engine.operation,
        memory=arm.engine.memory,
        descriptor_bytes=layout.descriptor_bytes,
        backend=arm.transport.backend,
        environment=BACKENDS[arm.transport.backend].variables(arm.environment),
        counters=list(arm.transport.counters),
        link_layer=arm.transport.link_layer,
        interfaces=list(host.interfaces),
        rdma_devices=list(host.rdma_devices),
        gpus=list(host.gpus),
        ranks=arm.engine.rank_pairs,
        use_counts=arm.environment.get("UCX_PROTO_INFO") == "used",
        carried_at_least=study.road.carried_at_least,
        not_carried_at_most=study.road.not_carried_at_most,
        idle_bytes_per_s=study.road.idle_bytes_per_s,
    )


@dataclass(frozen=True)
class PhaseLoad:
    """The pulls of one phase of a cell, of each rank pair, and how many of them at a time."""

    phase: str
    pulls: int
    in_flight: int
    seed: int


def loads_of(study: Study, launch: Launch, cell: Cell) -> list[PhaseLoad]:
    """Return the load of each phase of a cell, in their order; some may have no pulls."""
    work = launch.arm.workload
    loads = [
        ("warmup", work.warmup_pulls, 1),
        ("one_at_a_time", work.pulls, 1),
        ("in_flight", work.pulls_in_flight, work.concurrency),
    ]
    # Room for 1000 phases of a block and 1000 blocks of a seed: no two phases share one.
    first_seed = study.seed * 1_000_000 + cell.block * 1000
    return [PhaseLoad(*load, first_seed + number) for number, load in enumerate(loads)]
