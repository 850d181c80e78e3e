"""A published study in a checkout with git: running it by its name leaves what is committed."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def committed(measured: Any, make_checkout: Callable[[], Any]) -> Any:
    """A checkout with git in which the smoke study was run, published and committed."""
    checkout = make_checkout()
    for name in ("results", "reports"):
        shutil.copytree(measured.path / name, checkout.path / name)
    shutil.copy(REPOSITORY / ".gitignore", checkout.path)
    done = checkout.kvroad("publish", "study=smoke")
    assert done.returncode == 0, done.stderr
    assert "git add reports/published/smoke" in done.stdout
    git(checkout.path, "init", "--quiet")
    (checkout.path / ".git" / "info" / "exclude").write_text("/home/\n")
    git(checkout.path, "add", ".")
    git(checkout.path, "commit", "--quiet", "--message", "published")
    return checkout


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(
        ["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_a_run_of_a_published_study_leaves_git_as_it_is(committed: Any) -> None:
    tracked = git(committed.path, "ls-files", "reports").splitlines()
    assert {path.split("/")[1] for path in tracked} == {"published"}
    assert {"reports/published/smoke/index.html", "reports/published/smoke/raw.tar.xz"} <= {
        *tracked
    }
    own = committed.path / "reports" / "smoke"
    before = (own / "index.html").stat().st_mtime_ns
    shutil.rmtree(own)
    committed.snakemake("all", "--config", "study=smoke", check=True)
    assert (own / "index.html").stat().st_mtime_ns > before
    assert git(committed.path, "status", "--porcelain") == ""


def rebuild(published: Path) -> tuple[int, list[str]]:
    tool = REPOSITORY / "tools" / "rebuild_published.py"
    done = subprocess.run(
        [sys.executable, tool, published], capture_output=True, text=True, timeout=600
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_what_was_published_rebuilds_to_the_same_tables(committed: Any, tmp_path: Path) -> None:
    published = tmp_path / "smoke"
    shutil.copytree(committed.path / "reports/published/smoke", published)
    text = (published / "verdict.md").read_text()
    (published / "verdict.md").write_text(text.replace("study=smoke", "study=smock"))
    status, (first, *lines) = rebuild(published)
    assert (status, first) == (1, "smoke: 1 differ"), lines
    assert lines[0].startswith("  verdict.md:")
    assert "more than numbers" in lines[0]


def test_a_rebuild_measures_nothing(committed: Any, tmp_path: Path) -> None:
    published = tmp_path / "smoke"
    shutil.copytree(committed.path / "reports/published/smoke", published)
    with tarfile.open(published / "raw.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    lost = next((tmp_path / "results/launches").iterdir())
    shutil.rmtree(lost)
    shutil.rmtree(tmp_path / "results/cells" / lost.name, ignore_errors=True)
    with tarfile.open(published / "raw.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "results", "results")
    said = "  not rebuilt: launches that would be measured: 1"
    assert rebuild(published) == (1, ["smoke: 1 differ", said])
