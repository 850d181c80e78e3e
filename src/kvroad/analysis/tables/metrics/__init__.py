"""The metrics, each declared in a file of this package: its name, unit, formulas and sources.

Tables, statistics, verdict, page and MLflow take what is declared here; a new metric is a
new file.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from kvroad.analysis.tables.metrics.declaration import IN_FLIGHT, ONE_AT_A_TIME, WARMUP, Metric
from kvroad.errors import UserError, nearest
from kvroad.registry import kinds_in

__all__ = [
    "IN_FLIGHT",
    "MAIN_METRICS",
    "METRICS",
    "ONE_AT_A_TIME",
    "WARMUP",
    "Metric",
    "metric",
    "metrics_of",
    "statistic_of",
]

METRICS = tuple(sorted(kinds_in(__name__, Metric).values(), key=lambda declared: declared.order))
MAIN_METRICS = tuple(declared for declared in METRICS if declared.is_main)


def metric(name: str) -> Metric:
    """Return the metric of that name.

    Raises
    ------
    UserError
        When there is none, with the nearest one.
    """
    known = {declared.name: declared for declared in METRICS}
    if name not in known:
        hint, allowed = nearest(name, known), ", ".join(known)
        raise UserError(f"unknown metric {name!r}{hint} (allowed: {allowed})")
    return known[name]


def metrics_of(columns: Container[str]) -> list[Metric]:
    """Return the metrics that a table of cells has columns for, in their order.

    Their formula is that of serving engines where the table counts requests.
    """
    known = [m for m in METRICS if m.name in columns]
    if "n_requests" not in columns:
        return known
    return [replace(m, formula=m.served_formula, refusals=m.served_refusals) for m in known]


def statistic_of(what: Metric, *, is_served: bool) -> str:
    """Return what a launch's value of a metric is: median, mean, rate, or a difference of medians.

    Serving engines tell sums and counts of their transfers, which give a mean and no median.
    """
    return (is_served and what.served_statistic) or what.statistic
