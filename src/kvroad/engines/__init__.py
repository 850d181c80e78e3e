"""Planners, one file each: from a launch to a plan; beside them the programs that a plan starts."""

from __future__ import annotations

import getpass
import platform
from dataclasses import replace
from pathlib import Path

from kvroad.plan import Plan
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study
from kvroad.study.kinds import ENGINES
from kvroad.study.kv_layout import KvLayout, pull_layout

__all__ = ["largest_launch", "layout_of", "owner_of", "plan_of", "pool_bytes"]


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
