"""What is checked at a commit, in continuous integration, and by hand is the same."""

import re
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[2]
TOOL = re.compile(r"uv run (?:--no-sync )?((?:ruff (?:format|check)|[a-z]\S+))")


def tools(text: str) -> set[str]:
    return set(TOOL.findall(text))


def test_pre_commit_has_the_checks_of_continuous_integration() -> None:
    steps = (REPOSITORY / ".ci/run").read_text().split('echo "== ')
    checks = {step.partition('"')[0]: step for step in steps}
    own = {name: tools(checks[name]) for name in ("format", "lint", "types", "import contract")}
    assert own == {
        "format": {"ruff format", "snakefmt"},
        "lint": {"ruff check"},
        "types": {"mypy"},
        "import contract": {"lint-imports"},
    }
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert tools("\n".join(entries)) == set.union(*own.values())
    assert len(entries) == len(tools("\n".join(entries)))


def test_the_page_for_contributors_has_them_and_the_tests() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    said = page.partition("## Before a commit")[2].partition("## ")[0]
    checks = tools((REPOSITORY / ".ci/run").read_text().partition('echo "== the smoke study')[0])
    assert checks <= tools(said)
