"""The descriptor size at which one series overtakes another."""

from __future__ import annotations

import math
from itertools import combinations
from typing import NotRequired, TypedDict

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model.fit import Fit, Values, terms
from kvroad.analysis.cost_model.series import Series

__all__ = ["break_even_frame", "fieller"]


class BreakEvenRow(TypedDict):
    """Two series and a size of pull; where there is no break-even size the note says why."""

    series: str
    other: str
    pull_bytes: int
    break_even_bytes: NotRequired[float]
    break_even_low_bytes: NotRequired[float]
    break_even_high_bytes: NotRequired[float]
    faster_below: NotRequired[str]
    faster_above: NotRequired[str]
    is_extrapolated: bool
    note: str


_PER_DESCRIPTOR = np.array([0.0, 1.0, 0.0])


def break_even_frame(all_series: list[Series], alpha: float) -> pd.DataFrame:
    """Return a row per pair of series and size of pull.

    At constant bytes B a pull in pieces of s takes c + a · B / s with c = t0 + B / b, so two
    of them are equal at D = B / s = (c2 - c1) / (a1 - a2) descriptors. Its interval is
    Fieller's for a ratio of two normal estimates, which may have no upper end.
    """
    pulls = [series for series in all_series if series.measure == "pull_ms" and series.is_fitting]
    rows = []
    for series, other in combinations(pulls, 2):
        shared = np.intersect1d(series.launches.n_bytes, other.launches.n_bytes)
        rows += [_row(series, other, float(n_bytes), alpha) for n_bytes in shared]
    return pd.DataFrame(rows, columns=list(BreakEvenRow.__annotations__))


def _row(series: Series, other: Series, n_bytes: float, alpha: float) -> BreakEvenRow:
    row: BreakEvenRow = {
        "series": series.name,
        "other": other.name,
        "pull_bytes": int(n_bytes),
        "is_extrapolated": False,
        "note": "",
    }
    whole = terms(0.0, n_bytes)
    if not all(s.fit.is_told(x) for s in (series, other) for x in (whole, _PER_DESCRIPTOR)):
        return row | {"note": "what a descriptor costs cannot be told from what a byte costs"}
    sizes = [np.unique(s.sizes[s.launches.n_bytes == n_bytes]) for s in (series, other)]
    low = max(s.min() for s in sizes)
    high = min(s.max() for s in sizes)
    gap = float(whole @ (other.fit.values - series.fit.values))
    slope = float(_PER_DESCRIPTOR @ (series.fit.values - other.fit.values))
    if slope == 0 or gap / slope <= 0:
        first = series if gap > 0 or (gap == 0 and slope < 0) else other
        return row | {"note": f"none: {first.name} is faster at every size"}
    size = n_bytes * slope / gap
    # Small pieces are many descriptors: there the series with the cheaper descriptor wins.
    below, above = (other, series) if slope > 0 else (series, other)
    few, many = _descriptors(series.fit, other.fit, whole, alpha)
    return row | {
        "break_even_bytes": size,
        "break_even_low_bytes": min(n_bytes / many, size) if many > 0 else math.nan,
        "break_even_high_bytes": max(n_bytes / few, size) if few > 0 else math.inf,
        "faster_below": below.name,
        "faster_above": above.name,
        "is_extrapolated": not low <= size <= high,
        "note": "" if low <= size <= high else "outside the sizes measured",
    }


def _descriptors(series: Fit, other: Fit, whole: Values, alpha: float) -> tuple[float, float]:
    """Return the interval of the number of descriptors at which two series are equal."""
    both = series.covariance + other.covariance
    t = max(fit.t(x, alpha) for fit in (series, other) for x in (whole, _PER_DESCRIPTOR))
    return fieller(
        float(whole @ (other.free - series.free)),
        float(_PER_DESCRIPTOR @ (series.free - other.free)),
        float(whole @ both @ whole),
        float(_PER_DESCRIPTOR @ both @ _PER_DESCRIPTOR),
        -float(whole @ both @ _PER_DESCRIPTOR),
        t,
    )


def fieller(
    top: float, bottom: float, top_var: float, bottom_var: float, covariance: float, t: float
) -> tuple[float, float]:
    """Return the interval of ``top / bottom`` (Fieller 1954).

    The ratios r with (top - r · bottom)² <= t² · var(top - r · bottom). Where ``bottom`` is
    not told from zero it has no end: (0, inf) then, ratios being positive here.
    """
    a = bottom**2 - t**2 * bottom_var
    b = top * bottom - t**2 * covariance
    c = top**2 - t**2 * top_var
    root = b**2 - a * c
    if math.isnan(t) or a <= 0 or root < 0:
        return 0.0, math.inf
    return (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a
