"""Before a run: what is there, what would run in which order, how long, and what it could show.

Nothing here reaches a host: it reads the configuration and the results on this machine.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kvroad.engines import largest_launch, plan_of, pool_bytes
from kvroad.measure.missing import missing_launches
from kvroad.plan import Claim, Plan
from kvroad.results import cell_dir, outcome_of
from kvroad.study.arms import lengths_of
from kvroad.study.design import Cell, Design, Launch, contrast_pairs
from kvroad.study.fields import Study
from kvroad.study.kinds import ENGINES
from kvroad.study.kv_layout import pull_layout
from kvroad.study.sides import is_split, on_host

__all__ = [
    "SCHEMA",
    "Duration",
    "duration_of",
    "expected",
    "matrix",
    "memory",
    "n_comparisons",
    "next_plans",
    "to_run",
]

SCHEMA = "kvroad.plan/1"
_COUNTER_NAMES = {"interface": "interfaces", "nic": "RDMA ports", "nvlink": "NVLinks"}


def matrix(design: Design, results_dir: Path) -> list[dict[str, Any]]:
    """Return a row per arm and prompt length: how many cells are proven, refused, failed, missing.

    ``reason`` is that of the first cell that is refused or failed, else empty.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for cell in sorted(design.cells, key=lambda c: (list(design.arms).index(c.arm), c.block)):
        row = rows.setdefault(
            (cell.arm, cell.prompt_tokens),
            {"arm": cell.arm, "prompt_tokens": cell.prompt_tokens}
            | dict.fromkeys(("proven", "refused", "failed", "missing"), 0)
            | {"reason": ""},
        )
        outcome = outcome_of(results_dir, cell.id) or {"outcome": "missing"}
        row[outcome["outcome"]] += 1
        if outcome["outcome"] in ("refused", "failed") and not row["reason"]:
            row["reason"] = str(outcome.get("reason", ""))
    return list(rows.values())


def to_run(study: Study, design: Design, results_dir: Path) -> list[dict[str, Any]]:
    """Return the launches that the workflow would run now, in their order."""
    return [
        {
            "launch": launch.id,
            "arm": launch.arm.label,
            "block": launch.block,
            "host": launch.host,
            "prompt_tokens": [cell.prompt_tokens for cell in cells],
        }
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


def duration_of(design: Design, rows: Iterable[dict[str, Any]], results_dir: Path) -> Duration:
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
        seen = like.get((row["arm"], tuple(sorted(row["prompt_tokens"]))))
        n_unlike += seen is None
        seconds = between_s + (longest if seen is None else statistics.median(seen))
        by_host[row["host"]] = by_host.get(row["host"], 0.0) + seconds
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
    found = []
    for launch in design.launches:
        span = _span(launch, results_dir)
        if span is not None:
            found.append(span)
    return sorted(found, key=lambda span: (span.run_id, span.host, span.start))


def _span(launch: Launch, results_dir: Path) -> _Span | None:
    outcomes = [(cell, outcome_of(results_dir, cell.id)) for cell in launch.cells]
    if not all(outcome and outcome["outcome"] == "proven" for _, outcome in outcomes):
        return None
    cell, outcome = outcomes[0]
    assert outcome is not None
    try:
        text = (cell_dir(results_dir, cell.id) / "raw" / "events.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
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


def memory(study: Study, design: Design) -> dict[str, Any] | None:
    """Return what the pools of the largest launch take; None where the engine has its own."""
    if ENGINES[study.engine.name].serves:
        return None
    largest = largest_launch(study, design)
    return {
        "kind": study.engine.memory,
        "bytes_per_side": pool_bytes(study, largest) // 2,
        "ranks_per_side": largest.arm.engine.rank_pairs,
        "is_one_host": not is_split(study.host),
        "arm": largest.arm.label,
        "prompt_tokens": max(cell.prompt_tokens for cell in largest.cells),
    }


def next_plans(
    study: Study, design: Design, results_dir: Path, launch_id: str | None = None
) -> list[tuple[Launch, list[Cell], Plan]]:
    """Return a plan per arm, of its next missing launch or else its first; or of one launch.

    Raises
    ------
    KeyError
        When the study has no launch of that id.
    """
    if launch_id is not None:
        chosen = [(design.launch(launch_id), design.launch(launch_id).cells)]
    else:
        first: dict[str, tuple[Launch, list[Cell]]] = {}
        everything = [(launch, launch.cells) for launch in design.launches]
        for launch, cells in [*missing_launches(study, design, results_dir), *everything]:
            first.setdefault(launch.arm.label, (launch, cells))
        chosen = [first[arm] for arm in design.arms]
    return [
        (launch, cells, plan_of(on_host(study, launch.host), launch, cells))
        for launch, cells in chosen
    ]


def expected(study: Study, launch: Launch, plan: Plan) -> dict[str, Any]:
    """Return what an arm claims and which witnesses are to agree, as its plan has it."""
    claim, arm = plan.claim, launch.arm
    layouts = {
        tokens: pull_layout(study.model, arm.engine, arm.workload, tokens)
        for tokens in lengths_of(study, arm.label)
    }
    return {
        "arm": arm.label,
        "transport": claim.transport,
        "roads": claim.roads,
        "operation": claim.operation,
        "memory": claim.memory,
        "ucx_tls": claim.environment.get("UCX_TLS"),
        "pulls": [
            {
                "prompt_tokens": tokens,
                "descriptors": layout.n_descriptors,
                "descriptor_bytes": layout.descriptor_bytes,
                "bytes": layout.n_bytes,
            }
            for tokens, layout in layouts.items()
        ],
        "witnesses": _witnesses(claim),
    }


def _witnesses(claim: Claim) -> list[dict[str, str]]:
    roads = " or ".join(claim.roads)
    found = [
        {"name": "environment", "expected": "UCX's own line says what was asked"},
        {
            "name": "protocol_table",
            "expected": f"`remote memory {claim.operation}` over {roads} in every worker",
        },
    ]
    if claim.use_counts:
        found.append(
            {"name": "use_counts", "expected": f"every descriptor over {roads}, none elsewhere"}
        )
    named = {
        "interface": ", ".join(claim.interfaces),
        "nic": ", ".join(claim.rdma_devices),
        "nvlink": ", ".join(f"GPU {gpu}" for gpu in claim.gpus),
    }
    for kind, devices in named.items():
        carries = kind in claim.counters
        where = devices or f"all {_COUNTER_NAMES[kind]} of the host"
        if carries:
            text = f"at least {claim.carried_at_least:.0%} of the payload ({where})"
        elif devices:
            text = f"at most {claim.not_carried_at_most:.0%} of the payload ({where})"
        else:
            continue
        found.append({"name": f"{kind}_bytes", "expected": text})
    found.append({"name": "telemetry", "expected": "descriptors and bytes as planned, none failed"})
    return found


def n_comparisons(study: Study) -> int:
    """Return how many comparisons of a metric Holm's correction is over."""
    return sum(
        len({*lengths_of(study, arm)} & {*lengths_of(study, baseline)})
        for arm, baseline in contrast_pairs(study)
    )
