import subprocess
import sys
from pathlib import Path

import pytest

from kvroad.publish.tracking.marker import drop_stale_marker
from kvroad.step import module_digest


def run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    script = f"""
from kvroad.errors import UserError
from kvroad.step import step
with step({str(tmp_path / "a.log")!r}) as say:
    {body}
"""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_user_error_is_one_line_on_screen_and_in_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, "raise UserError('this is wrong')")
    assert done.returncode == 1
    assert done.stderr == "error: this is wrong\n"
    assert (tmp_path / "a.log").read_text() == done.stderr


def test_a_bug_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, "1 / 0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" in (tmp_path / "a.log").read_text()


def test_what_is_said_goes_to_both(tmp_path: Path) -> None:
    done = run(tmp_path, "say('hello')")
    assert (done.returncode, done.stderr) == (0, "hello\n")
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
