"""Times of pulls: from issuing to completion, the call that issues, what is left after it."""

from __future__ import annotations

from dataclasses import replace

from kvroad.analysis.tables.metrics.declaration import IN_FLIGHT, ONE_AT_A_TIME, Metric, in_ms
from kvroad.evidence.serving import ServedPhase

_NO_TIME = "rows without a time above zero, and rows whose post exceeds the transfer"


def _pull_ms(phase: ServedPhase) -> float | None:
    moved = phase.transfers
    return 1e3 * moved.xfer_s / moved.count if moved and moved.count else None


def _post_ms(phase: ServedPhase) -> float | None:
    moved = phase.transfers
    return 1e3 * moved.post_s / moved.count if moved and moved.count else None


def _after_post_ms(phase: ServedPhase) -> float | None:
    pull, post = _pull_ms(phase), _post_ms(phase)
    return None if pull is None or post is None else pull - post


def _gb_per_s(phase: ServedPhase) -> float | None:
    moved = phase.transfers
    return moved.n_bytes / moved.xfer_s / 1e9 if moved and moved.count and moved.xfer_s else None


def _step_ms(phase: ServedPhase) -> float | None:
    """Return the time between tokens: decode looks at its pulls once in a step."""
    return in_ms(phase.itl_p50_s)


PULL = Metric(
    name="pull_ms",
    label="KV pull time",
    unit="ms",
    phase=ONE_AT_A_TIME,
    pull="pull_ms",
    formula="median(xfer_us) / 1000; xfer runs from issuing the pull to its completion",
    served_formula="sum / count of vllm:nixl_xfer_time_seconds on decode",
    refusals=_NO_TIME,
    of_pulls=lambda pulls: pulls["xfer_us"],
    of_phase=_pull_ms,
    per_unit=1000.0,
    served_statistic="mean",
    margin_key="pull_ms",
    order=1,
    is_time=True,
    is_main=True,
)
POST = replace(
    PULL,
    name="post_ms",
    label="post time",
    formula="median(post_us) / 1000; post is the call that issues the pull",
    served_formula="sum / count of vllm:nixl_post_time_seconds on decode",
    of_pulls=lambda pulls: pulls["post_us"],
    of_phase=_post_ms,
    margin_key="post_ms",
)
AFTER_POST = replace(
    PULL,
    name="after_post_ms",
    label="after-post time",
    formula="median(xfer_us - post_us) / 1000; what is left once the pull is issued",
    served_formula="KV pull time less post time",
    of_pulls=lambda pulls: pulls["after_post_us"],
    of_phase=_after_post_ms,
    margin_key="after_post_ms",
    is_part=True,
)
PULL_IN_FLIGHT, POST_IN_FLIGHT, AFTER_POST_IN_FLIGHT = (
    replace(
        metric,
        name=metric.name.replace("_ms", "_in_flight_ms"),
        label=f"{metric.label} with several in flight",
        phase=IN_FLIGHT,
        pull="pull_in_flight_ms",
        # A post is timed by the call itself, whatever the step.
        step_of_phase=None if metric is POST else _step_ms,
        is_main=False,
    )
    for metric in (PULL, POST, AFTER_POST)
)
GOODPUT = Metric(
    name="goodput_gb_per_s",
    label="goodput of one pull",
    unit="GB/s",
    phase=ONE_AT_A_TIME,
    pull="pull_ms",
    formula="median(bytes_moved / xfer_us) / 1000; GB = 10^9 bytes, per rank",
    served_formula="sum of vllm:nixl_bytes_transferred / sum of vllm:nixl_xfer_time_seconds",
    refusals=_NO_TIME,
    of_pulls=lambda pulls: pulls["bytes_moved"].astype("float64") / pulls["xfer_us"],
    of_phase=_gb_per_s,
    per_unit=1000.0,
    served_statistic="mean",
    order=1,
    is_higher_better=True,
)
