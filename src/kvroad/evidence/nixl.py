"""Rows of ``pulls-<rank>.jsonl`` as records, each checked for what it must not say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Problem", "Pull", "PullLog", "parse_pulls"]

WARMUP_PHASE = "warmup"


@dataclass(frozen=True)
class Pull:
    """One rank's transfer of one request's cache.

    Counts and times are None where NIXL gave no telemetry; times in microseconds,
    ``xfer_us`` includes ``post_us``.
    """

    file: str
    line: int
    cell: str
    phase: str
    pull: int
    rank: int
    operation: str
    in_flight: int
    descriptors_planned: int
    descriptors_given: int | None
    descriptors_moved: int | None
    bytes_planned: int
    bytes_moved: int | None
    post_us: float | None
    xfer_us: float | None
    wall_us: float | None
    start_mono_ns: int | None
    state: str
    verified: bool | None
    error: str | None

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def is_warmup(self) -> bool:
        """Whether the pull belongs to the warm-up: kept, and never counted in."""
        return self.phase == WARMUP_PHASE

    @property
    def is_done(self) -> bool:
        """Whether NIXL reported the transfer complete and without error."""
        return self.state == "DONE" and self.error is None

    @property
    def drop_reason(self) -> str | None:
        """Why the row's times are no data: None for a good row."""
        if not self.is_done:
            return f"state {self.state}" + (f": {self.error}" if self.error else "")
        if self.post_us is None or self.xfer_us is None:
            return "no telemetry"
        if self.post_us > self.xfer_us:
            return f"data error: post {self.post_us:g} us > transfer {self.xfer_us:g} us"
        return None


@dataclass(frozen=True)
class Problem:
    """A line that is no pull."""

    file: str
    line: int
    reason: str

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PullLog:
    """What one file of pulls holds."""

    file: str
    pulls: tuple[Pull, ...] = ()
    problems: tuple[Problem, ...] = ()


def parse_pulls(lines: Iterable[str], file: str) -> PullLog:
    """Read rows of pulls; blank lines are passed over, broken ones become problems."""
    pulls, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            pulls.append(_pull(json.loads(line), file, number))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(Problem(file, number, _reason(error)))
    return PullLog(file, tuple(pulls), tuple(problems))


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"field {error} is missing"
    return f"not a pull: {error}"


def _pull(row: Mapping[str, Any], file: str, line: int) -> Pull:
    """Take a row whole: a value of the wrong type makes it a problem, never a zero."""
    if not isinstance(row, Mapping):
        raise TypeError("no JSON object")
    get = row.get
    verified, error = get("verified"), get("error")
    if verified not in (True, False, None):
        raise ValueError(f"verified is {verified!r}")
    return Pull(
        file,
        line,
        cell=str(row["cell"]),
        phase=str(row["phase"]),
        pull=int(row["pull"]),
        rank=int(row["rank"]),
        operation=str(row["operation"]),
        in_flight=int(row["in_flight"]),
        descriptors_planned=int(row["descriptors_planned"]),
        descriptors_given=_integer(get("descriptors_given")),
        descriptors_moved=_integer(get("descriptors_moved")),
        bytes_planned=int(row["bytes_planned"]),
        bytes_moved=_integer(get("bytes_moved")),
        post_us=_number(get("post_us")),
        xfer_us=_number(get("xfer_us")),
        wall_us=_number(get("wall_us")),
        start_mono_ns=_integer(get("start_mono_ns")),
        state=str(row["state"]),
        verified=verified,
        error=None if error is None else str(error),
    )


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
