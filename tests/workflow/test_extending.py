"""docs/extending.md, done: its files in a copy of the tree, its commands run there."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_commands import (
    REPOSITORY,
    DocCommand,
    Shell,
    make_shell,
    read_commands,
    read_files,
    try_dry,
)

from kvroad.errors import UserError
from kvroad.study.compose import compose

PAGE = "docs/extending.md"
FILES = read_files(PAGE)
COMMANDS = read_commands(PAGE)


@pytest.fixture(scope="module")
def shell(make_checkout: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    checkout = make_checkout()
    for name, text in FILES.items():
        assert not (REPOSITORY / name).exists(), f"{name}: the page's example is taken"
        (checkout.path / name).write_text(text)
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
    assert len(COMMANDS) == 12
    assert {Path(name).parent.name for name in FILES if name.startswith("src/")} == {
        *("engines", "hosts", "metrics", "witnesses", "counters", "backends"),
    }


# Of a kind that only the copy's own code knows.
IN_THE_COPY = [
    command
    for command in COMMANDS
    if re.search("niced|two_cores|kvroad plan|with_a_witness", command.text)
]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in IN_THE_COPY], ids=str)
def test_what_the_page_adds_is_composed(command: DocCommand, shell: Shell) -> None:
    try_dry(command.text, shell.folder)


@pytest.mark.parametrize("command", IN_THE_COPY, ids=str)
def test_a_kind_of_the_page_is_planned(command: DocCommand, shell: Shell) -> None:
    done = shell.run(command.text.replace("--cores 1 all", "--cores 1 all -n"))
    assert done.returncode == 0, done.stderr
    if "snakemake" in command.text:
        assert "measure_launch" in done.stdout


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("", "one_end"),
        ("'transport=[shm]' 'transport.shm.counters=[disk]'", "all disks of the host"),
        ("'transport=[tcp,toy]'", "every transfer over toylink"),
    ],
)
def test_what_the_page_adds_to_the_proof_is_expected(words: str, printed: str, shell: Shell):
    done = shell.run(f"uv run kvroad plan study=smoke {words}")
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            "engine=niced engine.name=nicd",
            "engine.name: 'nicd' is not allowed; did you mean 'niced'?",
        ),
        ("host=two_cores host.connection=core", "'core' is not allowed; did you mean 'cores'?"),
        (
            "host=two_cores host.address=null",
            "host.address is missing: connection cores needs some",
        ),
    ],
)
def test_a_kind_of_the_page_is_checked(words: str, answer: str, shell: Shell) -> None:
    done = shell.run(f"uv run kvroad plan study=smoke {words}")
    assert done.returncode != 0
    assert answer in done.stdout + done.stderr


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
    (name,) = re.findall(
        r"tcp_64k|b256|llama-3.2-1b|nixl_one_thread|niced|two_cores|with_a_witness", command.text
    )[-1:]
    reports = [p for p in (shell.folder / "reports").iterdir() if name in p.name]
    (report,) = reports
    with open(report / "cells.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["outcome"] for row in rows} == {"proven"}
    # The metric of the page is a column, without an edit elsewhere.
    assert all(float(row["slowest_pull_ms"]) >= float(row["pull_ms"]) for row in rows)
    if name in ("tcp_64k", "b256"):
        assert any(name in row["arm"] for row in rows)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.xdist_group("loopback")
def test_the_planner_of_the_page_made_the_processes(shell: Shell) -> None:
    plans = list((shell.folder / "results/cells").glob("*/raw/plan.json"))
    assert any('"nice"' in plan.read_text() for plan in plans)
