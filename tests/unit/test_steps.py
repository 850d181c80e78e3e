import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvroad.errors import UserError
from kvroad.publish.tracking.marker import drop_stale_marker
from kvroad.step import module_digest, step


def run(log: Path, capsys: pytest.CaptureFixture[str], body: Callable[..., object]) -> str:
    """Run a step as a script does, its end included; return what it says on screen."""
    hook = sys.excepthook
    try:
        with step(str(log)) as say:
            body(say)
    except (UserError, ZeroDivisionError) as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.excepthook = hook
    return capsys.readouterr().err


def refuse(say: Callable[[str], None]) -> None:
    raise UserError("this is wrong")


def test_a_user_error_is_one_line_on_screen_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(tmp_path / "a.log", capsys, refuse)
    assert said == "error: this is wrong\n"
    assert (tmp_path / "a.log").read_text() == said


def test_a_bug_leaves_its_traceback_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(tmp_path / "a.log", capsys, lambda say: 1 / 0)
    assert said.count("\n") == 1
    assert "ZeroDivisionError" in said
    assert "Traceback" in (tmp_path / "a.log").read_text()


def test_what_is_said_goes_to_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "a.log", capsys, lambda say: say("hello")) == "hello\n"
    assert (tmp_path / "a.log").read_text() == "hello\n"


def test_a_digest_follows_the_source_of_modules_and_packages() -> None:
    assert module_digest("analysis/stats") != module_digest("publish/figures")
    assert module_digest("evidence") == module_digest("evidence")
    with pytest.raises(FileNotFoundError):
        module_digest("no_such_module")


def test_a_marker_without_its_database_is_dropped(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/gone.db"
    marker = drop_stale_marker(tmp_path, uri)
    marker.write_text("{}")
    assert drop_stale_marker(tmp_path, uri) == marker
    assert not marker.exists()
    assert drop_stale_marker(tmp_path, "sqlite:///other.db") != marker
