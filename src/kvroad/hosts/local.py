"""This machine: the same agent as elsewhere, started without SSH."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvroad.agent.manifest import MANIFEST, check_manifest
from kvroad.files import write_atomic
from kvroad.hosts.agent_file import agent_bytes, agent_name
from kvroad.hosts.machine import Completed, HostLost, Machine, shell_script
from kvroad.study.fields import Host
from kvroad.study.kinds import Connection

__all__ = ["KIND", "LocalMachine"]


class LocalMachine:
    """Runs the agent as a child in a session of its own.

    It stops by itself when its standard input closes, so that it outlives neither a crash
    nor a kill of this process.
    """

    def __init__(self, host: Host) -> None:
        self.label = f"host {host.name}"
        self._source = str(Path(host.source).expanduser()) if host.source else None
        self._python = str(Path(host.python).expanduser()) if host.python else sys.executable
        self._work_dir = Path(host.work_dir or "~/.kvroad").expanduser().absolute()
        # Nodes of a cluster may share the work folder: what belongs to this one is below it.
        self._node_dir = self._node_folder()
        self._agent = self._place_agent()

    def start(self, words: Sequence[str]) -> _Pipes:
        """Start the agent with a command."""
        try:
            return _Pipes(self._argv([*self._agent_words(), *words]))
        except OSError as error:
            raise HostLost(f"{self.label}: start of the agent: {error}") from error

    def call(self, words: Sequence[str], timeout_s: float) -> Completed:
        """Run a short command of the agent."""
        return self._call([*self._agent_words(), *words], "", timeout_s)

    def ask_python(self, script: str, timeout_s: float) -> Completed:
        """Run a script with the host's Python, as the engines get it."""
        return self._call([self._python, "-"], script, timeout_s)

    def has_raw_folder(self, launch: str) -> bool:
        """Return whether a whole raw folder of a launch waits to be fetched."""
        return (self._folder(launch) / MANIFEST).exists()

    def fetch(self, launch: str, target: Path) -> None:
        """Move the raw folder of a launch to ``target``."""
        wrong = check_manifest(self._folder(launch))
        if wrong:
            raise HostLost(f"{self.label}: raw folder of {launch}: {wrong}")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        for path in (partial, target):
            shutil.rmtree(path, ignore_errors=True)
        shutil.move(self._folder(launch), partial)
        os.replace(partial, target)

    def close(self) -> None:
        """Nothing is held."""

    def _node_folder(self) -> Path:
        return self._work_dir / platform.node()

    def _place_agent(self) -> Path:
        data = agent_bytes()
        path = self._work_dir / agent_name(data)
        try:
            if not path.exists():
                self._work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomic(path, lambda file: file.write_bytes(data))
        except OSError as error:
            raise HostLost(f"{self.label}: work folder {self._work_dir}: {error}") from error
        return path

    def _folder(self, launch: str) -> Path:
        return self._node_dir / "launches" / launch

    def _agent_words(self) -> list[str]:
        return [self._python, str(self._agent), f"--work-dir={self._node_dir}"]

    def _argv(self, words: Sequence[str]) -> list[str]:
        if self._source is None:
            return list(words)
        return ["bash", "-c", shell_script(self._source, shlex.join(words))]

    def _call(self, words: list[str], text: str, timeout_s: float) -> Completed:
        try:
            done = subprocess.run(
                self._argv(words),
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostLost(f"{self.label}: {error}") from error
        return Completed(done.returncode, done.stdout, done.stderr)


class _Pipes:
    def __init__(self, argv: list[str]) -> None:
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def send(self, line: str) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line + "\n")
            self._popen.stdin.flush()
        except ValueError as error:  # closed on this side
            raise BrokenPipeError(str(error)) from error

    def lines(self) -> Iterator[str]:
        assert self._popen.stdout is not None
        yield from self._popen.stdout

    def close_input(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def errors(self) -> str:
        assert self._popen.stderr is not None
        fd = self._popen.stderr.fileno()
        os.set_blocking(fd, False)
        text = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(fd, 1 << 16):
                text += chunk
        return text.decode(errors="replace")

    def close(self) -> None:
        if self._popen.poll() is None:
            # Frozen: whoever reads its output is stuck in there, and closing it would hang too.
            return
        for pipe in (self._popen.stdout, self._popen.stderr):
            assert pipe is not None
            pipe.close()


def _open(host: Host) -> Machine:
    return LocalMachine(host)


KIND = Connection("local", open=_open)
