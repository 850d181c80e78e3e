"""The metrics, each declared once: name, unit, phase, formula, and what is refused."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

__all__ = [
    "IN_FLIGHT",
    "MAIN_METRICS",
    "METRICS",
    "ONE_AT_A_TIME",
    "REPLAY_METRICS",
    "SERVED_METRICS",
    "WARMUP",
    "Metric",
    "metric",
    "metrics_of",
    "statistic_of",
]

WARMUP = "warmup"
ONE_AT_A_TIME = "one_at_a_time"
IN_FLIGHT = "in_flight"

_NO_TIME = "rows without a time above zero, and rows whose post exceeds the transfer"
_NO_REQUEST = "requests that failed"
_NO_TRANSFER = "nothing, since a failed transfer refuses the whole cell"


@dataclass(frozen=True)
class Metric:
    """One metric of a launch: the median over the pulls of one phase, all ranks together.

    Serving engines tell sums and counts of their transfers, so there it is a mean; what
    their clients see is a median over requests, or a rate.

    Parameters
    ----------
    column
        Column of the pulls table; its median is divided by ``per_unit``.
    served_formula
        How serving engines' launches give the value, where they do.
    margin_key
        Key of the claims' margins where the metric's own name is not there.
    pull
        The whole that a part is a share of: pull time, or time to first token, of the phase.
    is_part
        An after-post time: zero is a valid value, so it is compared as a difference.
    is_difference
        A difference in itself, which no ratio is made of.
    needs_transfer
        Whether an engine that serves alone has no such value.
    """

    name: str
    label: str
    unit: str
    phase: str
    column: str
    per_unit: float
    formula: str
    refusals: str
    margin_key: str
    pull: str
    served_formula: str = ""
    is_part: bool = False
    is_difference: bool = False
    is_higher_better: bool = False
    is_main: bool = False
    needs_transfer: bool = True

    @property
    def is_time(self) -> bool:
        """Whether its column holds times, which lie on the grid of a clock."""
        return self.column.endswith("_us") and self.unit == "ms"


def _times(phase: str, suffix: str, label: str, is_main: bool) -> list[Metric]:
    pull = f"pull{suffix}_ms"
    return [
        Metric(
            name=pull,
            label=f"KV pull time{label}",
            unit="ms",
            phase=phase,
            column="xfer_us",
            per_unit=1000.0,
            formula="median(xfer_us) / 1000; xfer runs from issuing the pull to its completion",
            served_formula="sum / count of vllm:nixl_xfer_time_seconds on decode",
            refusals=_NO_TIME,
            margin_key="pull_ms",
            pull=pull,
            is_main=is_main,
        ),
        Metric(
            name=f"post{suffix}_ms",
            label=f"post time{label}",
            unit="ms",
            phase=phase,
            column="post_us",
            per_unit=1000.0,
            formula="median(post_us) / 1000; post is the call that issues the pull",
            served_formula="sum / count of vllm:nixl_post_time_seconds on decode",
            refusals=_NO_TIME,
            margin_key="post_ms",
            pull=pull,
            is_main=is_main,
        ),
        Metric(
            name=f"after_post{suffix}_ms",
            label=f"after-post time{label}",
            unit="ms",
            phase=phase,
            column="after_post_us",
            per_unit=1000.0,
            formula="median(xfer_us - post_us) / 1000; what is left once the pull is issued",
            served_formula="KV pull time less post time",
            refusals=_NO_TIME,
            margin_key="after_post_ms",
            pull=pull,
            is_part=True,
            is_main=is_main,
        ),
    ]


_GOODPUT = Metric(
    name="goodput_gb_per_s",
    label="goodput of one pull",
    unit="GB/s",
    phase=ONE_AT_A_TIME,
    column="bytes_per_us",
    per_unit=1000.0,
    formula="median(bytes_moved / xfer_us) / 1000; GB = 10^9 bytes, per rank",
    served_formula="sum of vllm:nixl_bytes_transferred / sum of vllm:nixl_xfer_time_seconds",
    refusals=_NO_TIME,
    margin_key="goodput_gb_per_s",
    pull="pull_ms",
    is_higher_better=True,
)
_TTFT = Metric(
    name="ttft_p50_one_at_a_time",
    label="time to first token, one request at a time",
    unit="ms",
    phase=ONE_AT_A_TIME,
    column="ttft_s",
    per_unit=1e-3,
    formula="",
    served_formula="median over requests, as the load generator sees them",
    refusals=_NO_REQUEST,
    margin_key="ttft_ms",
    pull="ttft_p50_one_at_a_time",
    is_main=True,
    needs_transfer=False,
)
_EXTRA_TTFT = replace(
    _TTFT,
    name="extra_ttft_ms",
    label="extra time to first token",
    served_formula="time to first token less that of one engine that serves alone, block by block",
    is_part=True,
    is_difference=True,
)
_ITL = Metric(
    name="itl_p50_one_at_a_time",
    label="time between tokens, one request at a time",
    unit="ms",
    phase=ONE_AT_A_TIME,
    column="itl_s",
    per_unit=1e-3,
    formula="",
    served_formula="median over requests of each one's mean",
    refusals=_NO_REQUEST,
    margin_key="itl_ms",
    pull="itl_p50_one_at_a_time",
    needs_transfer=False,
)
_IN_FLIGHT = [
    replace(
        one,
        name=one.name.replace("one_at_a_time", "in_flight"),
        label=one.label.replace("one request at a time", "several requests in flight"),
        phase=IN_FLIGHT,
        pull=one.pull.replace("one_at_a_time", "in_flight"),
        is_main=False,
    )
    for one in (_TTFT, _ITL)
]
_RATE = Metric(
    name="requests_per_s_in_flight",
    label="requests per second, several in flight",
    unit="requests/s",
    phase=IN_FLIGHT,
    column="requests_per_s",
    per_unit=1.0,
    formula="",
    served_formula="requests without an error / time from the first sent to the last answered",
    refusals=_NO_REQUEST,
    margin_key="requests_per_s",
    pull="ttft_p50_in_flight",
    is_higher_better=True,
    is_main=True,
    needs_transfer=False,
)

REPLAY_METRICS: tuple[Metric, ...] = (
    *_times(ONE_AT_A_TIME, "", "", True),
    *_times(IN_FLIGHT, "_in_flight", " with several in flight", False),
    _GOODPUT,
)
# What only a served model has: there is a client that waits for tokens.
SERVED_METRICS: tuple[Metric, ...] = (_TTFT, _EXTRA_TTFT, _RATE, _ITL, *_IN_FLIGHT)
METRICS: tuple[Metric, ...] = (*REPLAY_METRICS, *SERVED_METRICS)
MAIN_METRICS: tuple[Metric, ...] = tuple(m for m in METRICS if m.is_main)


def metric(name: str) -> Metric:
    """Return the metric of that name; KeyError when there is none."""
    return {m.name: m for m in METRICS}[name]


def metrics_of(columns: Container[str]) -> list[Metric]:
    """Return the metrics that a table of cells has columns for, in their order.

    Their formula is that of serving engines where the table counts requests.
    """
    known = [m for m in METRICS if m.name in columns]
    if "n_requests" not in columns:
        return known
    return [
        replace(
            m,
            formula=m.served_formula,
            refusals=_NO_TRANSFER if m.needs_transfer else m.refusals,
        )
        for m in known
    ]


def statistic_of(what: Metric, *, is_served: bool) -> str:
    """Return what a launch's value of a metric is: median, mean, rate, or a difference of medians.

    Serving engines tell sums and counts of their transfers, which give a mean and no median.
    """
    if what.is_difference:
        return "difference of medians"
    if what.name == _RATE.name:
        return "rate"
    return "mean" if is_served and what.needs_transfer else "median"
