"""The metrics, each declared once: name, unit, phase, formula, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IN_FLIGHT", "MAIN_METRICS", "METRICS", "ONE_AT_A_TIME", "WARMUP", "Metric", "metric"]

WARMUP = "warmup"
ONE_AT_A_TIME = "one_at_a_time"
IN_FLIGHT = "in_flight"

_NO_TIME = "rows without a time above zero, and rows whose post exceeds the transfer"


@dataclass(frozen=True)
class Metric:
    """One metric of a launch: the median over the pulls of one phase, all ranks together.

    Parameters
    ----------
    column
        Column of the pulls table; its median is divided by ``per_unit``.
    margin_key
        Key of the claims' margins where the metric's own name is not there.
    pull
        Pull time of the same phase, the whole that a part is a share of.
    is_part
        An after-post time: zero is a valid value, so it is compared as a difference.
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
    is_part: bool = False
    is_higher_better: bool = False
    is_main: bool = False

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
    refusals=_NO_TIME,
    margin_key="goodput_gb_per_s",
    pull="pull_ms",
    is_higher_better=True,
)

METRICS: tuple[Metric, ...] = (
    *_times(ONE_AT_A_TIME, "", "", True),
    *_times(IN_FLIGHT, "_in_flight", " with several in flight", False),
    _GOODPUT,
)
MAIN_METRICS: tuple[Metric, ...] = tuple(m for m in METRICS if m.is_main)


def metric(name: str) -> Metric:
    """Return the metric of that name; KeyError when there is none."""
    return {m.name: m for m in METRICS}[name]
