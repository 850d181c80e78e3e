"""The commands of the pages on commands, run in a copy of the tree or tried dry."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_commands import REPOSITORY, DocCommand, Shell, make_shell, read_commands

from kvroad.cli.parser import COMMANDS

PAGES = ("docs/commands.md", "docs/doctor.md")


@pytest.fixture(scope="module")
def shell(make_checkout: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    checkout = make_checkout()
    shutil.copytree(REPOSITORY / "reports/published", checkout.path / "reports/published")
    shutil.copytree(REPOSITORY / "tests" / "data", checkout.path / "tests" / "data")
    programs: Path = tmp_path_factory.mktemp("programs")
    return make_shell(checkout.path, checkout.environment(), programs)


@pytest.mark.parametrize(
    "command", [command for page in PAGES for command in read_commands(page)], ids=str
)
def test_commands_of_the_pages(
    command: DocCommand, shell: Shell, request: pytest.FixtureRequest
) -> None:
    command.check(shell, run_slow=request.config.getoption("--run-slow"))


@pytest.mark.parametrize("example", [e for command in COMMANDS for e in command.examples], ids=str)
def test_examples_of_the_help_texts(example: str, shell: Shell) -> None:
    DocCommand("--help", 0, example, "dry").check(shell)


def test_every_command_has_examples_and_is_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "commands.md").read_text()
    for command in COMMANDS:
        assert command.examples
        assert f"`kvroad {command.name}`" in page
