"""An sshd of the tests: own port, host key, authorised key and configuration."""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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
Subsystem sftp internal-sftp
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def keygen(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


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


class Sshd:
    def __init__(self, account: Account, folder: Path) -> None:
        self.account = account
        self.folder = folder
        self.port = free_port()
        self.work_dir = folder / "work"
        self.process: subprocess.Popen[bytes] | None = None
        host_key = keygen(folder / "host_key")
        authorized = folder / "authorized_keys"
        authorized.write_text(account.key.with_suffix(".pub").read_text())
        (folder / "sshd_config").write_text(
            CONFIG.format(port=self.port, host_key=host_key, authorized=authorized)
        )
        self.host_key_line = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        self.accept_on(self.port)

    @property
    def node_dir(self) -> Path:
        """Where the agent keeps what belongs to this machine."""
        return self.work_dir / platform.node()

    def accept_on(self, port: int) -> None:
        """Make the host key known for a port, such as that of a proxy."""
        with open(self.account.known_hosts, "a") as file:
            file.write(f"[127.0.0.1]:{port} {self.host_key_line}\n")

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def sessions(self) -> list[int]:
        """Return the processes of sshd that serve a connection, the outermost first."""
        assert self.process is not None
        found, parents = [], {self.process.pid}
        while parents:
            parents = {pid for parent in parents for pid in children_of(parent)}
            sshd = [p for p in parents if (Path(f"/proc/{p}/comm").read_text().strip()) == "sshd"]
            found += sshd
            parents = set(sshd)
        return found

    def overrides(self, *, port: int | None = None) -> list[str]:
        """Return what a study needs to run here, as Hydra overrides."""
        return [
            "host.address=127.0.0.1",
            f"host.port={port or self.port}",
            f"host.identity_file={self.account.key}",
            f"host.python={sys.executable}",
            f"host.work_dir={self.work_dir}",
        ]

    def stop(self) -> None:
        if self.process is None:
            return
        for pid in [*self.sessions(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found
