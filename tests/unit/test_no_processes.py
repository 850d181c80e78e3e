"""What conftest.py refuses in this folder."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        os.fork,
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    ],
    ids=["subprocess", "system", "posix_spawn", "fork", "multiprocessing"],
)
def test_a_process_is_refused(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"move it to tests/live"):
        start()
