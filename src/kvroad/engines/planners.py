"""From a launch to the plan of its engine."""

from __future__ import annotations

import getpass
import platform
from pathlib import Path

from kvroad.engines.dynamo import dynamo_plan
from kvroad.engines.nixl import replay_plan
from kvroad.engines.vllm import vllm_plan
from kvroad.plan import Plan
from kvroad.study.design import Cell, Launch
from kvroad.study.fields import Study

__all__ = ["owner_of", "plan_of"]


def plan_of(study: Study, launch: Launch, cells: list[Cell]) -> Plan:
    """Return the plan of a launch for the cells of it that are to be measured."""
    planner = {"dynamo": dynamo_plan, "vllm": vllm_plan}.get(launch.arm.engine.name, replay_plan)
    return planner(study, launch, cells, owner_of(study))


def owner_of(study: Study) -> str:
    """Return who asks for a launch, as others read it who find the host busy."""
    return f"{getpass.getuser()}@{platform.node()} study {study.name} in {Path.cwd()}"
