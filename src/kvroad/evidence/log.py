"""What every log of a process holds, whichever backend moved the bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Complaint", "ProcessLog", "Record"]


@dataclass(frozen=True)
class Record:
    """Where a record was read: file name, line (from 1) and the line itself."""

    file: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Complaint(Record):
    """A warning or an error; ``message`` is the text without its prefix.

    ``speaker`` is the library that printed it: the backend by its name, whatever its case
    (``UCX``), ``NIXL``, which passes on what the backend said, or another one.
    """

    speaker: str
    level: str
    pid: int | None
    message: str


@dataclass(frozen=True)
class ProcessLog:
    """One log file; what a backend reads in it besides is a class of its own, derived from this.

    ``last_lines`` are the file's last lines of any kind, ``n_complaints`` counts also
    those complaints that were not kept.
    """

    file: str
    complaints: tuple[Complaint, ...] = ()
    last_lines: tuple[Record, ...] = ()
    n_lines: int = 0
    n_complaints: int = 0
