"""Where a plan runs: one interface for this machine and, later, for others over SSH."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import zipapp
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from kvroad import study
from kvroad.agent.manifest import check_manifest
from kvroad.errors import UserError
from kvroad.plan import Plan, dumps

__all__ = ["HostLost", "LocalHost", "RunningHost", "build_agent", "open_host"]

OnEvent = Callable[[dict[str, Any]], None]
_HEARTBEAT_S = 1.0
_EXIT_BUSY = 75
# What the agent is made of; standard library only, as the import contract checks.
_AGENT_PARTS = ("__init__.py", "plan.py", "agent", "evidence")


class HostLost(Exception):
    """The host or its agent went away before it handed over a raw folder."""


class RunningHost(Protocol):
    """A host that can run plans."""

    def facts(self) -> dict[str, Any]:
        """Return the host's facts."""

    def run(self, plan: Plan, raw_dir: Path, on_event: OnEvent) -> None:
        """Run a plan and lay its raw folder down at ``raw_dir``."""


def build_agent(path: Path) -> Path:
    """Write the agent as one runnable file and return its path."""
    spec = importlib.util.find_spec("kvroad")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "kvroad"
        root.mkdir()
        for part in _AGENT_PARTS:
            source = package / part
            if source.is_dir():
                shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / part)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        zipapp.create_archive(folder, temporary, main="kvroad.agent.__main__:run_and_exit")
        temporary.replace(path)
    return path


class LocalHost:
    """This machine: the same agent as elsewhere, started without SSH.

    The agent runs in a session of its own and stops by itself when its standard input
    closes, so that it outlives neither a crash nor a kill of this process.
    """

    def __init__(self, host: study.Host) -> None:
        self.host = host
        self.python = host.python or sys.executable
        self.work_dir = Path(host.work_dir or "~/.kvroad").expanduser()
        self.agent = build_agent(self.work_dir / "agent.pyz")

    def facts(self) -> dict[str, Any]:
        """Return the host's facts as the agent reads them."""
        done = subprocess.run(
            self._argv("facts"), capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode != 0:
            raise HostLost(f"host {self.host.name}: the agent does not run: {done.stderr.strip()}")
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    def run(self, plan: Plan, raw_dir: Path, on_event: OnEvent) -> None:
        """Run a plan here.

        Raises
        ------
        UserError
            When the host is busy with somebody else's launch.
        HostLost
            When the agent died or left processes behind.
        """
        plan_path = self.work_dir / "plans" / f"{plan.launch}.json"
        plan_path.parent.mkdir(parents=True, exist_ok=True)
        plan_path.write_text(dumps(plan))
        folder = self.work_dir / "launches" / plan.launch
        argv = self._argv(
            *("run", str(plan_path), str(folder)),
            *("--lease-s", str(self.host.lease_s)),
            *("--lock-timeout-s", str(self.host.lock_timeout_s)),
        )
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as agent:
            with _heartbeats(agent):
                last = self._follow(agent, on_event)
            returncode = agent.wait()
            errors = agent.stderr.read() if agent.stderr else ""
        self._refuse(returncode, last, errors)
        self._fetch(folder, raw_dir)
        plan_path.unlink()

    def _argv(self, *words: str) -> list[str]:
        return [self.python, str(self.agent), "--work-dir", str(self.work_dir), *words]

    def _follow(self, agent: subprocess.Popen[str], on_event: OnEvent) -> dict[str, Any]:
        last: dict[str, Any] = {}
        assert agent.stdout is not None
        for line in agent.stdout:
            row = json.loads(line)
            if row["event"] in ("busy", "end"):
                last = row
            on_event(row)
        return last

    def _refuse(self, returncode: int, last: dict[str, Any], errors: str) -> None:
        if returncode == _EXIT_BUSY:
            holder = last.get("holder", {})
            raise UserError(
                f"host {self.host.name} is busy: {holder.get('owner')} (pid {holder.get('pid')}) "
                f"holds it since {holder.get('since')}; wait, or set host.lock_timeout_s"
            )
        if returncode != 0:
            text = last.get("reason") or errors.strip().splitlines()[-1:] or "no message"
            raise HostLost(f"host {self.host.name}: the agent ended with {returncode}: {text}")

    def _fetch(self, folder: Path, raw_dir: Path) -> None:
        raw_dir.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(raw_dir, ignore_errors=True)
        shutil.move(folder, raw_dir)
        wrong = check_manifest(raw_dir)
        if wrong:
            raise HostLost(f"host {self.host.name}: raw folder of {folder.name}: {wrong}")


@contextlib.contextmanager
def _heartbeats(agent: subprocess.Popen[str]) -> Iterator[None]:
    """Send a sign of life each second; closing the input ends the agent in any case."""
    done = threading.Event()

    def beat() -> None:
        assert agent.stdin is not None
        while not done.wait(_HEARTBEAT_S):
            try:
                agent.stdin.write(".\n")
                agent.stdin.flush()
            except (BrokenPipeError, ValueError):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(BrokenPipeError):
            assert agent.stdin is not None
            agent.stdin.close()


def open_host(host: study.Host) -> LocalHost:
    """Return the host of a study.

    Raises
    ------
    UserError
        For a kind of connection that this version cannot open.
    """
    if host.connection == "local":
        return LocalHost(host)
    raise UserError(
        f"host.connection={host.connection} of host {host.name} cannot be opened; allowed: local"
    )
