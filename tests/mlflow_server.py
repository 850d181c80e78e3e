"""A real MLflow server on loopback, for as long as a test needs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def server(folder: Path, port: int, database: str = "server.db") -> Iterator[str]:
    """Run a real MLflow server; it is gone, with its children, afterwards."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/{database}"]
    command += ["--artifacts-destination", str(folder / "served")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / f"server-{time.monotonic_ns()}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **quiet},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            # It lets a TERM wait for its workers: the whole group ends at once.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the server is not ready after 120 s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
