"""The rig's folder, its tools, and bounded commands with one-line errors."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST_NAME = "kvroad-soft-roce"
USER = "kvroad"
DEFAULT_PORT = 22022
# Debian packages of the commands that the rig runs.
PACKAGES_OF_TOOLS = {
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}


class RigError(Exception):
    """What a user can mend, in one line."""


@dataclass(frozen=True)
class Rig:
    """The folder that holds image, kernel, key and the state of the guest."""

    folder: Path

    @classmethod
    def from_environment(cls) -> Rig:
        """Return the rig in ``$KVROAD_RIG_DIR``, else in the user's cache folder."""
        default = Path.home() / ".cache" / "kvroad" / "soft_roce"
        return cls(Path(os.environ.get("KVROAD_RIG_DIR") or default).expanduser().resolve())

    @property
    def image(self) -> Path:
        return self.folder / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key.pub"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    @property
    def built(self) -> Path:
        return self.folder / "built.json"

    @property
    def guest(self) -> Path:
        return self.folder / "guest.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against another command of the rig.

        Raises
        ------
        RigError
            When another command holds it, or when it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / "lock", "a")  # noqa: SIM115 (held below)
        except OSError as error:
            raise RigError(f"{self.folder}: {error.strerror}; set KVROAD_RIG_DIR") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RigError(f"another command of the rig works in {self.folder}") from None
            yield


def require_tools(*names: str) -> None:
    """Raise RigError naming the Debian packages of commands that are not installed."""
    # Debian keeps debootstrap and mke2fs out of an ordinary user's PATH.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES_OF_TOOLS[name] for name in missing}))
        raise RigError(f"{', '.join(missing)} not found: apt-get install {packages}")


def run(argv: Sequence[str | Path], what: str, log: Path, timeout_s: float) -> None:
    """Run a command, its output appended to ``log``, within a time limit.

    Raises
    ------
    RigError
        When it fails or does not end in time; names the step and its last line.
    """
    with open(log, "ab") as out:
        try:
            done = subprocess.run(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            )
        except subprocess.TimeoutExpired:
            raise RigError(f"{what} did not end within {timeout_s:.0f} s; see {log}") from None
    if done.returncode != 0:
        raise RigError(f"{what} ended with {done.returncode}: {last_line(log)}; see {log}")


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def read_json(path: Path) -> dict[str, Any]:
    """Return what a state file holds; empty where there is none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a state file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Say what is being done, and keep and print its seconds."""
    print(f"{name} ...", flush=True)
    started = time.monotonic()
    yield
    times[name] = round(time.monotonic() - started, 1)
    print(f"{name}: {times[name]} s", flush=True)
