"""What a host must be able to do for an agent to run there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvroad.errors import UserError

__all__ = ["Completed", "HostLost", "Link", "Machine", "shell_path", "shell_script"]


class HostLost(UserError):
    """The host or its agent went away before it handed over a raw folder."""


@dataclass(frozen=True)
class Completed:
    """How a command ended; ``returncode`` is -1 where the connection broke before."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The last line of what it said on standard error."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"status {self.returncode}, no message"


class Link(Protocol):
    """The pipes of an agent that runs; each method but ``lines`` returns at once or in time."""

    def send(self, line: str) -> None:
        """Write a line to its input; raises OSError where nobody reads."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of its output until it ends or the connection breaks."""

    def close_input(self) -> None:
        """End its input, which ends the agent."""

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit status, None where it is not known in time."""

    def errors(self) -> str:
        """Return what it has said on standard error."""

    def close(self) -> None:
        """Let go of the pipes."""


class Machine(Protocol):
    """A place with a work folder, a Python and the agent in it."""

    label: str

    def start(self, words: Sequence[str]) -> Link:
        """Start the agent with a command."""

    def call(self, words: Sequence[str], timeout_s: float) -> Completed:
        """Run a short command of the agent."""

    def ask_python(self, script: str, timeout_s: float) -> Completed:
        """Run a script with the host's Python, as the engines get it."""

    def has_raw_folder(self, launch: str) -> bool:
        """Return whether a whole raw folder of a launch waits to be fetched."""

    def fetch(self, launch: str, target: Path) -> None:
        """Lay the raw folder of a launch down at ``target``, each file checked by its hash.

        The host keeps its copy. Raises HostLost where the connection breaks: what has
        arrived stays beside ``target``, and the next call goes on from there.
        """

    def close(self) -> None:
        """Let go of the host."""


def shell_path(text: str) -> str:
    """Quote a path for a POSIX shell; a ``~/`` in front means the home folder there."""
    if text == "~":
        return '"$HOME"'
    if text.startswith("~/"):
        return '"$HOME"/' + shlex.quote(text[2:])
    # A path that begins with a dash must not be taken for an option.
    return shlex.quote(text if text.startswith("/") else f"./{text}")


def shell_script(source: str | None, command: str) -> str:
    """Return a script that reads the ``source`` file, if any, and becomes the command."""
    if source is None:
        return f"exec {command}"
    path = shell_path(source)
    # What the file prints must not get between the events, nor may it eat the heartbeats.
    return f"[ -r {path} ] || {{ echo host.source cannot be read: {path} >&2; exit 66; }}\n" + (
        f". {path} </dev/null >&2 || {{ echo host.source failed: {path} >&2; exit 66; }}\n"
        f"exec {command}"
    )
