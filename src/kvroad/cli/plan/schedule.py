"""Which launches would run, in which order, and how long that would take."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvroad.evidence.events import read_events
from kvroad.measure.missing import missing_launches
from kvroad.results import cell_dir, outcome_of
from kvroad.study.design import Design, Launch
from kvroad.study.fields import Study

__all__ = ["Duration", "LaunchRow", "duration_of", "to_run"]


@dataclass(frozen=True)
class LaunchRow:
    """A launch that would run now, with the prompt lengths of its open cells."""

    launch: str
    arm: str
    block: int
    host: str
    prompt_tokens: list[int]


def to_run(study: Study, design: Design, results_dir: Path) -> list[LaunchRow]:
    """Return the launches that the workflow would run now, in their order."""
    return [
        LaunchRow(
            launch.id,
            launch.arm.label,
            launch.block,
            launch.host,
            [cell.prompt_tokens for cell in cells],
        )
        for launch, cells in missing_launches(study, design, results_dir)
    ]


@dataclass(frozen=True)
class Duration:
    """How long a run would take, from launches that were run before.

    Parameters
    ----------
    seconds
        Until the last host is done; None where no launch of the study was seen.
    by_host
        Seconds of each host, which all work at the same time.
    n_seen
        Launches that it is drawn from.
    n_unlike
        Launches to run whose arm and prompt lengths none of those has: counted as the longest.
    between_s
        Seconds from one launch to the next, contained in ``seconds``.
    """

    seconds: float | None
    n_seen: int = 0
    n_unlike: int = 0
    between_s: float = 0.0
    by_host: dict[str, float] = field(default_factory=dict)


def duration_of(design: Design, rows: Iterable[LaunchRow], results_dir: Path) -> Duration:
    """Estimate how long launches would take; medians per arm and prompt lengths."""
    spans = _spans(design, results_dir)
    if not spans:
        return Duration(None)
    like: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    for span in spans:
        like.setdefault((span.arm, span.prompt_tokens), []).append(span.seconds)
    between_s = _between(spans)
    longest = max(span.seconds for span in spans)
    by_host: dict[str, float] = {}
    n_unlike = 0
    for row in rows:
        seen = like.get((row.arm, tuple(sorted(row.prompt_tokens))))
        n_unlike += seen is None
        seconds = between_s + (longest if seen is None else statistics.median(seen))
        by_host[row.host] = by_host.get(row.host, 0.0) + seconds
    return Duration(max(by_host.values(), default=0.0), len(spans), n_unlike, between_s, by_host)


@dataclass(frozen=True)
class _Span:
    """When one launch ran: wall clock of its start and end, seconds of the monotonic clock."""

    arm: str
    host: str
    prompt_tokens: tuple[int, ...]
    run_id: str
    start: datetime
    end: datetime
    seconds: float


def _spans(design: Design, results_dir: Path) -> list[_Span]:
    spans = [span for launch in design.launches if (span := _span(launch, results_dir))]
    return sorted(spans, key=lambda span: (span.run_id, span.host, span.start))


def _span(launch: Launch, results_dir: Path) -> _Span | None:
    outcomes = [(cell, outcome_of(results_dir, cell.id)) for cell in launch.cells]
    if not all(outcome and outcome["outcome"] == "proven" for _, outcome in outcomes):
        return None
    cell, outcome = outcomes[0]
    assert outcome is not None
    try:
        rows = read_events(cell_dir(results_dir, cell.id) / "raw")
        start, end = (datetime.fromisoformat(row["time"]) for row in (rows[0], rows[-1]))
        seconds = (rows[-1]["mono_ns"] - rows[0]["mono_ns"]) / 1e9
    except (OSError, ValueError, KeyError, IndexError):
        return None
    lengths = tuple(sorted(cell.prompt_tokens for cell in launch.cells))
    run_id = str(outcome.get("run_id"))
    return _Span(launch.arm.label, launch.host, lengths, run_id, start, end, seconds)


def _between(spans: list[_Span]) -> float:
    """Return the median time from the end of a launch to the start of the next there of its run."""
    gaps = [
        (later.start - earlier.end).total_seconds()
        for earlier, later in itertools.pairwise(spans)
        if (earlier.run_id, earlier.host) == (later.run_id, later.host)
    ]
    return max(statistics.median(gaps), 0.0) if gaps else 0.0
