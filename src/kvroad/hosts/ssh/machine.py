"""A host that SSH reaches: agent up, commands over channels, raw folders down."""

from __future__ import annotations

import contextlib
import json
import posixpath
import shlex
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paramiko import SSHException

from kvroad.hosts.agent_file import agent_bytes, agent_name
from kvroad.hosts.machine import Completed, HostLost, shell_path, shell_script
from kvroad.hosts.ssh.connection import connect, deadline, disconnect, label_of
from kvroad.hosts.ssh.transfer import download
from kvroad.study import fields as study

__all__ = ["SshMachine"]

_MARK = "kvroad-work-dir "
_OLDEST = (3, 10)
_READ_S = 20.0
# Old Pythons must be able to say how old they are.
_GREETING = (
    "import json, os, platform, sys; "
    "place = [os.getcwd(), platform.node(), sys.version_info[:3]]; "
    f"sys.stdout.write({_MARK!r} + json.dumps(place) + chr(10))"
)


class SshMachine:
    """Runs the agent through a channel of an SSH connection, opened when first needed.

    sshd ends the agent's input when the connection breaks; a connection that merely goes
    silent is noticed by either side for want of heartbeats.
    """

    def __init__(self, host: study.Host) -> None:
        self.label = label_of(host)
        self._host = host
        self._python = host.python or "python3"
        self._connection: Any = None
        self._agent = ""
        # Below the work folder, which nodes of a cluster may share: what belongs to this one.
        self._node_dir = ""

    def start(self, words: Sequence[str]) -> _Channel:
        """Start the agent with a command."""
        self._ready()
        return self._execute(self._agent_script(words), "start of the agent")

    def call(self, words: Sequence[str], timeout_s: float) -> Completed:
        """Run a short command of the agent."""
        self._ready()
        return self._complete(self._agent_script(words), "", timeout_s)

    def ask_python(self, script: str, timeout_s: float) -> Completed:
        """Run a script with the host's Python, as the engines get it."""
        self._ready()
        return self._complete(self._script(["-"]), script, timeout_s)

    def has_raw_folder(self, launch: str) -> bool:
        """Return whether a whole raw folder of a launch waits to be fetched."""
        self._ready()
        path = posixpath.join(self._folder(launch), "manifest.json")
        with self._sftp("look for raw folders") as sftp:
            try:
                sftp.stat(path)
            except FileNotFoundError:
                return False
        return True

    def fetch(self, launch: str, target: Path) -> None:
        """Download the raw folder of a launch, each file checked by its hash."""
        self._ready()
        with self._sftp(f"download of {launch}") as sftp:
            download(sftp, self._folder(launch), target, self.label)

    def close(self) -> None:
        """Close the connection; an agent that still runs ends at once."""
        if self._connection is not None:
            disconnect(self._connection)
            self._connection = None

    def _folder(self, launch: str) -> str:
        return posixpath.join(self._node_dir, "launches", launch)

    def _ready(self) -> None:
        """Connect, or connect anew, and see that Python and agent are there."""
        if self._connection is not None and self._connection.transport.is_active():
            return
        self.close()
        self._connection = connect(self._host)
        self.label = label_of(self._host, self._connection)
        work_dir, node = self._greet()
        self._node_dir = posixpath.join(work_dir, node)
        self._agent = self._place_agent(work_dir)

    def _greet(self) -> tuple[str, str]:
        """Make the work folder; return its path and the node's name once Python is new enough."""
        folder = shell_path(self._host.work_dir or "~/.kvroad")
        script = f"umask 077; mkdir -p {folder} && cd {folder} || exit 73\n" + self._script(
            ["-c", _GREETING]
        )
        done = self._complete(script, "", self._host.connect_timeout_s + _READ_S)
        if done.returncode == 73:
            raise HostLost(f"{self.label}: work folder: {done.last_words}")
        line = next((x for x in done.stdout.splitlines() if x.startswith(_MARK)), None)
        if done.returncode != 0 or line is None:
            raise HostLost(
                f"{self.label}: host.python={self._python} does not run: {done.last_words}"
            )
        work_dir, node, version = json.loads(line.removeprefix(_MARK))
        if tuple(version) < _OLDEST:
            found = ".".join(map(str, version))
            raise HostLost(
                f"{self.label}: {self._python} is Python {found}; 3.10 or newer is needed: "
                "set host.python"
            )
        return str(work_dir), str(node)

    def _place_agent(self, work_dir: str) -> str:
        """Upload the agent unless this very one is there, and return its path."""
        data = agent_bytes()
        path = posixpath.join(work_dir, agent_name(data))
        with self._sftp("upload of the agent") as sftp:
            try:
                if sftp.stat(path).st_size == len(data):
                    return path
            except FileNotFoundError:
                pass
            temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
            try:
                with sftp.open(temporary, "wb") as file:
                    file.write(data)
                sftp.posix_rename(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    sftp.remove(temporary)
                raise
        return path

    def _script(self, words: Sequence[str]) -> str:
        """Return a script that runs the host's Python with these words, whatever is in them."""
        program = shell_path(self._python) if "/" in self._python else shlex.quote(self._python)
        return shell_script(self._host.source, " ".join([program, *map(shlex.quote, words)]))

    def _agent_script(self, words: Sequence[str]) -> str:
        return self._script([self._agent, f"--work-dir={self._node_dir}", *words])

    def _execute(self, script: str, step: str) -> _Channel:
        # The login shell may be of any kind; what it gets is one quoted word for a known one.
        shell = "sh" if self._host.source is None else "bash"
        command = f"exec {shell} -c {shlex.quote(script)}"
        timeout_s = self._host.connect_timeout_s
        with deadline(self._connection, timeout_s, f"{self.label}: {step}"):
            channel = self._connection.transport.open_session(timeout=timeout_s)
            channel.exec_command(command)
        channel.settimeout(self._host.lease_s)
        return _Channel(channel)

    def _complete(self, script: str, text: str, timeout_s: float) -> Completed:
        channel = self._execute(script, "start of a command")
        with deadline(self._connection, timeout_s, f"{self.label}: command"):
            try:
                if text:
                    channel.send(text)
                channel.close_input()
                out = "".join(channel.lines())
                # It comes after the end of the output, and not at all to a closed channel.
                returncode = channel.wait(timeout_s)
            finally:
                channel.close()
        return Completed(-1 if returncode is None else returncode, out, channel.errors())

    @contextlib.contextmanager
    def _sftp(self, step: str) -> Iterator[Any]:
        """Open SFTP; any silence longer than the lease loses the connection."""
        label, quiet_s = f"{self.label}: {step}", self._host.lease_s
        with deadline(self._connection, self._host.connect_timeout_s, f"{label}: SFTP"):
            sftp = self._connection.transport.open_sftp_client()
        sftp.get_channel().settimeout(quiet_s)
        try:
            yield sftp
        except TimeoutError as error:
            raise HostLost(f"{label}: no data for {quiet_s:g} s") from error
        except (OSError, EOFError, SSHException) as error:
            raise HostLost(f"{label}: {' '.join(str(error).split()) or 'cut off'}") from error
        finally:
            with contextlib.suppress(OSError, EOFError, SSHException):
                sftp.close()


class _Channel:
    """The pipes of one command on the host."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._errors = b""

    def send(self, line: str) -> None:
        try:
            self._channel.sendall(line.encode() + b"\n")
        except (SSHException, EOFError) as error:
            raise ConnectionError(str(error)) from error

    def lines(self) -> Iterator[str]:
        buffer = b""
        while chunk := self._receive():
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace") + "\n"
        if buffer:
            yield buffer.decode(errors="replace")

    def _receive(self) -> bytes:
        while True:
            self._take_errors()
            try:
                return bytes(self._channel.recv(1 << 16))
            except TimeoutError:
                # Of sending alone: how long silence may last is for the reader to say.
                continue
            except (OSError, EOFError, SSHException):
                return b""

    def close_input(self) -> None:
        try:
            self._channel.shutdown_write()
        except (SSHException, EOFError) as error:
            raise ConnectionError(str(error)) from error

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status; -1 where a signal or a broken connection took it."""
        if not self._channel.status_event.wait(timeout_s):
            return None
        return int(self._channel.exit_status)

    def errors(self) -> str:
        self._take_errors()
        return self._errors.decode(errors="replace")

    def _take_errors(self) -> None:
        # Taken along the way: a full window of it would stop the command.
        while self._channel.recv_stderr_ready():
            self._errors += self._channel.recv_stderr(1 << 16)

    def close(self) -> None:
        self._channel.close()
