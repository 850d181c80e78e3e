"""Tracking beside other processes: a real git, and another holder of its lock."""

import multiprocessing
import multiprocessing.synchronize
import subprocess
import time
from pathlib import Path

import pytest
from tracked_study import write_study

from kvroad.errors import UserError
from kvroad.publish.tracking.store import file_lock
from kvroad.publish.tracking.study_runs import read_records


def test_commit_of_the_logger_does_not_change_the_content(tmp_path):
    study = write_study(tmp_path)
    before = read_records(**study, root=tmp_path).cells[0]
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-qm", "x", "--allow-empty"], check=True)
    after = read_records(**study, root=tmp_path).cells[0]
    assert before.volatile == {}
    assert (len(after.volatile["git_commit"]), after.volatile["git_dirty"]) == (40, "true")
    assert after.content == before.content


def _hold(path: Path, started: multiprocessing.synchronize.Event) -> None:
    with file_lock(path, 5, "test"):
        started.set()
        time.sleep(60)


def test_second_process_is_answered_in_one_line_and_a_killed_holder_lets_go(tmp_path):
    path = tmp_path / "a" / "m.lock"
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    holder = context.Process(target=_hold, args=(path, started))
    holder.start()
    try:
        assert started.wait(120)
        with pytest.raises(UserError, match="another process"), file_lock(path, 0.2, "MLflow"):
            pass
    finally:
        holder.kill()
        holder.join()
    with file_lock(path, 0.2, "MLflow"):
        pass
