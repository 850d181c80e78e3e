"""README and docs: commands that are run or tried dry, links that lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_commands import REPOSITORY, DocCommand, Shell, make_shell, read_commands

from kvroad.study.compose import compose

PAGES = (
    *("README.md", "docs/cluster.md", "docs/hosts.md", "docs/mlflow.md", "docs/serving.md"),
    "docs/soft_roce.md",
)
ALL = sorted(
    path.relative_to(REPOSITORY)
    for path in [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("reports/*.md"),
        *REPOSITORY.glob("reports/published/**/*.md"),
    ]
)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]+)(#[^)\s]*)?\)")


@pytest.fixture(scope="module")
def shell(make_checkout: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    checkout = make_checkout()
    shutil.copytree(REPOSITORY / "reports/published", checkout.path / "reports/published")
    programs: Path = tmp_path_factory.mktemp("programs")
    return make_shell(checkout.path, checkout.environment(), programs)


@pytest.mark.parametrize("command", [c for page in PAGES for c in read_commands(page)], ids=str)
def test_commands_of_the_pages(
    command: DocCommand, shell: Shell, request: pytest.FixtureRequest
) -> None:
    command.check(shell, run_slow=request.config.getoption("--run-slow"))


def test_every_page_with_commands_is_tried_by_a_test() -> None:
    """A page with shell blocks is named in a test that reads its commands."""
    texts = [path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    for page in ALL:
        is_told = any(f'"{page}"' in text for text in texts)
        if read_commands(str(page)) and page.parts[0] in ("docs", "README.md"):
            assert is_told, f"{page} has commands that no test reads"


def test_hosts_of_the_page_on_clusters_make_a_study(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "cluster.md").read_text()
    host = re.search(r"```yaml\n(.*?)```", text, re.S)
    command = re.search(r"^uv run snakemake .*host=\[node1,node2\].*$", text, re.M)
    assert host is not None
    assert command is not None
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    for name in ("node1", "node2"):
        (tmp_path / "conf" / "host" / f"{name}.yaml").write_text(host[1].replace("node1", name))
    words = shlex.split(command[0])
    study = compose(words[words.index("--config") + 1 :], tmp_path / "conf")
    assert [one.address for one in study.hosts] == ["node1", "node2"]


@pytest.mark.parametrize("page", ALL, ids=str)
def test_links_and_pictures_are_there(page: Path) -> None:
    text = (REPOSITORY / page).read_text()
    for target, _ in _LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert ((REPOSITORY / page).parent / target).exists(), f"{page}: {target}"


def test_pictures_of_the_docs_are_small() -> None:
    pictures = list((REPOSITORY / "docs" / "images").glob("*.png"))
    assert len(pictures) >= 9
    assert all(path.stat().st_size <= 300_000 for path in pictures)
