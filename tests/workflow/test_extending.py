"""docs/extending.md, done: its files in a copy of the tree, its commands run there."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_commands import REPOSITORY, DocCommand, Shell, make_shell, read_commands, try_dry

from kvroad.errors import UserError
from kvroad.study.compose import compose

PAGE = "docs/extending.md"
FILES = dict(
    re.findall(
        r"^`((?:conf|src)/[\w/.-]+)`\n\n```(?:yaml|python)\n(.*?)^```$",
        (REPOSITORY / PAGE).read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
)
COMMANDS = read_commands(PAGE)
# What the page says in words: the engine's name is allowed, and its planner is asked.
PLAN_OF = """

_others = plan_of


def plan_of(study: Study, launch: Launch, cells: list[Cell]) -> Plan:  # noqa: F811
    from kvroad.engines.niced import niced_plan

    if launch.arm.engine.name == "niced":
        return niced_plan(study, launch, cells, owner_of(study))
    return _others(study, launch, cells)
"""


@pytest.fixture(scope="module")
def shell(make_checkout: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    checkout = make_checkout()
    for name, text in FILES.items():
        assert not (REPOSITORY / name).exists(), f"{name}: the page's example is taken"
        (checkout.path / name).write_text(text)
    checks = checkout.path / "src/kvroad/study/checks.py"
    known = '"engine.name": ('
    assert known in checks.read_text()
    checks.write_text(checks.read_text().replace(known, f'{known}"niced", '))
    measure = checkout.path / "src/kvroad/engines/planners.py"
    measure.write_text(measure.read_text() + PLAN_OF)
    programs: Path = tmp_path_factory.mktemp("programs")
    return make_shell(checkout.path, checkout.environment(), programs)


def test_page_adds_one_of_each() -> None:
    assert {name.split("/")[1] for name in FILES if name.startswith("conf/")} == {
        "transport",
        "variant",
        "model",
        "host",
        "engine",
    }
    assert len(COMMANDS) == 7


@pytest.mark.parametrize("command", [c for c in COMMANDS if "niced" not in c.text], ids=str)
def test_what_the_page_adds_is_composed(command: DocCommand, shell: Shell) -> None:
    try_dry(command.text, shell.folder)


def test_the_engine_of_the_page_is_planned(shell: Shell) -> None:
    (command,) = [c for c in COMMANDS if "niced" in c.text]
    done = shell.run(command.text.replace("--cores 1 all", "--cores 1 all -n"))
    assert done.returncode == 0, done.stderr
    assert "measure_launch" in done.stdout


def test_a_misspelt_field_is_answered_with_the_right_one(shell: Shell) -> None:
    path = shell.folder / "conf/transport/tcp_64k.yaml"
    text = path.read_text()
    path.write_text(text.replace("roads:", "raods:"))
    try:
        with pytest.raises(UserError, match="did you mean 'roads'"):
            compose(["study=smoke", "transport=[tcp_64k]"], shell.folder / "conf")
    finally:
        path.write_text(text)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.xdist_group("loopback")
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.mode == "slow"], ids=str)
def test_what_the_page_adds_is_measured_and_proven(command: DocCommand, shell: Shell) -> None:
    command.check(shell, run_slow=True)
    (name,) = re.findall(r"tcp_64k|b256|llama-3.2-1b|nixl_one_thread|niced", command.text)[-1:]
    reports = [p for p in (shell.folder / "reports").iterdir() if name in p.name]
    (report,) = reports
    with open(report / "cells.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["outcome"] for row in rows} == {"proven"}
    if name in ("tcp_64k", "b256"):
        assert any(name in row["arm"] for row in rows)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.xdist_group("loopback")
def test_the_planner_of_the_page_made_the_processes(shell: Shell) -> None:
    plans = list((shell.folder / "results/cells").glob("*/raw/plan.json"))
    assert any('"nice"' in plan.read_text() for plan in plans)
