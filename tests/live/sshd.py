"""An SSH server of the tests: own port, host key, authorised key and configuration.

OpenSSH's where it is installed, else one of asyncssh; ``KVROAD_TEST_SSH_SERVER`` chooses.
"""

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest
from ports import free_port
from waiting import wait_until

SSHD = "/usr/sbin/sshd"
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {host_key}
PidFile none
AuthorizedKeysFile {authorized}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
LoginGraceTime 0
Subsystem sftp internal-sftp
"""
ALGORITHMS = {"ed25519": "ssh-ed25519", "rsa": "ssh-rsa", "ecdsa": "ecdsa-sha2-nistp256"}

needs_openssh_client = pytest.mark.skipif(
    not all(map(shutil.which, ("ssh-agent", "ssh-add", "ssh-keygen", "ssh-keyscan"))),
    reason="it calls ssh-agent, ssh-keygen and ssh-keyscan: .ci/install_sshd installs them",
)


def keygen(path: Path, passphrase: str | None = None, kind: str = "ed25519") -> Path:
    key = asyncssh.generate_private_key(ALGORITHMS[kind])
    path.touch(mode=0o600)
    key.write_private_key(path, passphrase=passphrase)
    key.write_public_key(path.with_suffix(".pub"))
    return path


def lock(key: Path, path: Path, passphrase: str) -> Path:
    """Write a key once more, encrypted."""
    path.touch(mode=0o600)
    asyncssh.read_private_key(key).write_private_key(path, passphrase=passphrase)
    return path


def public_line(key: Path) -> str:
    """Return the public half of a key, as known_hosts and authorized_keys want it."""
    return key.with_suffix(".pub").read_text().strip()


@dataclass(frozen=True)
class Account:
    """A key pair, and the file of host keys that its owner has accepted."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Account":
        account = cls(folder)
        keygen(account.key)
        account.known_hosts.touch()
        return account

    @property
    def key(self) -> Path:
        return self.folder / "id_test"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def use_in(self, home: Path, name: str, port: int, *more: str) -> None:
        """Give a home folder an ssh_config entry for one sshd."""
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        lines = [
            f"Host {name}",
            "  HostName 127.0.0.1",
            f"  Port {port}",
            f"  IdentityFile {self.key}",
            f"  UserKnownHostsFile {self.known_hosts}",
            *(f"  {line}" for line in more),
        ]
        with open(ssh / "config", "a") as file:
            file.write("\n".join(lines) + "\n")


class PortTaken(Exception):
    """Somebody else was faster."""


class Sshd(ABC):
    """A server that runs, each of its connections in a process of its own."""

    def __init__(self, account: Account, folder: Path) -> None:
        self.account = account
        self.folder = folder
        self.port = free_port()
        self.work_dir = folder / "work"
        self.process: subprocess.Popen[bytes] | None = None
        self.host_key = keygen(folder / "host_key")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text(public_line(account.key) + "\n")
        self.host_key_line = public_line(self.host_key)
        self.accept_on(self.port)

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts the server and stays in the foreground."""

    @abstractmethod
    def sessions(self) -> list[int]:
        """Return the processes that serve a connection, the outermost first."""

    @property
    def node_dir(self) -> Path:
        """Where the agent keeps what belongs to this machine."""
        return self.work_dir / platform.node()

    def accept_on(self, port: int) -> None:
        """Make the host key known for a port, such as that of a proxy."""
        with open(self.account.known_hosts, "a") as file:
            file.write(f"[127.0.0.1]:{port} {self.host_key_line}\n")

    def start(self) -> None:
        log_file = self.folder / "sshd.log"
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._listens, "the SSH server")

    def _listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            said = (self.folder / "sshd.log").read_text()
            raise PortTaken if "Address already in use" in said else AssertionError(said)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def overrides(self, *, port: int | None = None, timeout_s: float = 60.0) -> list[str]:
        """Return what a study needs to run here, as Hydra overrides."""
        return [
            "host.address=127.0.0.1",
            f"host.port={port or self.port}",
            f"host.identity_file={self.account.key}",
            f"host.python={sys.executable}",
            f"host.work_dir={self.work_dir}",
            f"host.connect_timeout_s={timeout_s:g}",
            f"host.lease_s={timeout_s:g}",
        ]

    def stop(self) -> None:
        if self.process is None:
            return
        for pid in [*self.sessions(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


class OpenSshd(Sshd):
    def command(self) -> list[str]:
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(
            CONFIG.format(port=self.port, host_key=self.host_key, authorized=self.authorized)
        )
        return [SSHD, "-D", "-e", "-f", str(config)]

    def sessions(self) -> list[int]:
        assert self.process is not None
        found, parents = [], {self.process.pid}
        while parents:
            children = [pid for parent in parents for pid in children_of(parent)]
            parents = {pid for pid in children if name_of(pid).startswith("sshd")}
            found += parents
        return found


class AsyncSshd(Sshd):
    def command(self) -> list[str]:
        program = Path(__file__).with_name("asyncssh_server.py")
        words = [sys.executable, program, self.port, self.host_key, self.authorized]
        return [str(word) for word in words]

    def sessions(self) -> list[int]:
        assert self.process is not None
        return children_of(self.process.pid)


def chosen_server() -> type[Sshd]:
    """Return the kind of server that the environment asks for, else the one that is there."""
    kinds = {"openssh": OpenSshd, "asyncssh": AsyncSshd}
    name = os.environ.get("KVROAD_TEST_SSH_SERVER", "auto")
    if name == "auto":
        name = "openssh" if Path(SSHD).exists() else "asyncssh"
    assert name in kinds, f"KVROAD_TEST_SSH_SERVER={name}: auto, openssh or asyncssh"
    return kinds[name]


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
