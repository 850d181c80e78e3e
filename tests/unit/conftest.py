"""No test in here starts a process: what needs one lies in tests/live or tests/workflow."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

_STARTS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
    *("os.fork", "os.forkpty"),
}
_HERE = Path(__file__).parent
_watched: list[str] = []


def _refuse(what: str) -> NoReturn:
    pytest.fail(
        f"{_watched[0]} starts a process ({what}): move it to tests/live, "
        "or to tests/workflow where it runs the whole command"
    )


def _audit(event: str, details: tuple[Any, ...]) -> None:
    if event in _STARTS and _watched:
        _refuse(f"{event} {details[:2]}")


# The interpreter keeps such a hook for ever: it looks on only while a test of this folder runs.
sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.path.is_relative_to(_HERE):
        _watched.append(item.nodeid)
    try:
        return (yield)
    finally:
        _watched.clear()


@pytest.fixture(autouse=True)
def _no_multiprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its method "spawn" raises no audit event.
    monkeypatch.setattr(
        "multiprocessing.util.spawnv_passfds", lambda *_: _refuse("multiprocessing")
    )


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what asks git for the commit find no git."""

    def run(*_: Any, **__: Any) -> NoReturn:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", run)
