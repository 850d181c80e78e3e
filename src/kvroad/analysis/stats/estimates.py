"""Means with intervals: paired and pooled t, Welch's t, Holm's correction.

The t quantiles are scipy.special's: the tests of scipy.stats have no variance pooled over
groups, differ from these in the last digit, and take as long again to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

__all__ = ["Estimate", "Values", "estimate", "guarded_t", "holm", "is_uneven", "pooled_t", "welch"]

Values = npt.NDArray[np.float64]

# Level of the test that calls the spreads of groups uneven. Generous, since an interval that
# is too wide costs launches and one that is too narrow costs the truth.
UNEVEN_LEVEL = 0.10


@dataclass(frozen=True)
class Estimate:
    """A mean with its two-sided t interval; what cannot be had is NaN."""

    n: int
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    df: float = math.nan
    sd: float = math.nan


def pooled_t(groups: Mapping[int, Values], alpha: float) -> dict[int, Estimate]:
    """Return each group's mean with the residual variance pooled over all groups.

    One-way model y_pb = mu_p + e_pb with equal variance: s2 = sum of squared residuals /
    sum(n_p - 1), and mu_p = mean_p ± t(1 - alpha/2; sum(n_p - 1)) · s / sqrt(n_p)
    (Montgomery, Design and Analysis of Experiments, section 3.3). With one group it is the
    one-sample, here the paired, t. A group of one gets no interval.
    """
    df = sum(len(y) - 1 for y in groups.values() if len(y))
    squares = sum(float(((y - y.mean()) ** 2).sum()) for y in groups.values() if len(y))
    sd = math.sqrt(squares / df) if df else math.nan
    return {key: _one_mean(y, sd, df, alpha) for key, y in groups.items() if len(y)}


def guarded_t(groups: Mapping[int, Values], alpha: float) -> dict[int, Estimate]:
    """Return `pooled_t`, or where the groups' spreads are uneven the wider of it and the own t.

    Pooling gives the noisiest of uneven groups an interval that is too narrow. Taking the
    wider of the two, and never the narrower, keeps the error rate where spreads are equal.
    """
    pooled = pooled_t(groups, alpha)
    if not is_uneven(groups):
        return pooled
    single = {key: pooled_t({key: y}, alpha).get(key) for key, y in groups.items()}
    return {key: _wider(estimate, single[key]) for key, estimate in pooled.items()}


def _wider(pooled: Estimate, single: Estimate | None) -> Estimate:
    is_wider = single is not None and single.high - single.low > pooled.high - pooled.low
    return single if single is not None and is_wider else pooled


def is_uneven(groups: Mapping[int, Values]) -> bool:
    """Return whether the variances of the groups differ by Bartlett's test at the 10 % level.

    Groups of fewer than three values are left out (Montgomery, section 3.4.3).
    """
    groups_of_three = [y for y in groups.values() if len(y) > 2]
    if len(groups_of_three) < 2:
        return False
    has_spread = [y.var() > 0 for y in groups_of_three]
    if not all(has_spread):
        return any(has_spread)
    # Twice the import time of scipy.special, and most steps test no spreads.
    from scipy.stats import bartlett

    return bool(bartlett(*groups_of_three).pvalue < UNEVEN_LEVEL)


def _one_mean(y: Values, sd: float, df: float, alpha: float) -> Estimate:
    mean, n = float(y.mean()), len(y)
    if n < 2:
        return Estimate(n, mean, sd=sd)
    return estimate(n, mean, sd / math.sqrt(n), df, alpha, sd)


def welch(a: Values, b: Values, alpha: float) -> Estimate:
    """Return mean(a) - mean(b) with unequal variances (Welch 1947, Satterthwaite's df)."""
    mean, n = float(a.mean() - b.mean()), min(len(a), len(b))
    if n < 2:
        return Estimate(n, mean)
    va, vb = float(a.var(ddof=1)), float(b.var(ddof=1))
    error2 = va / len(a) + vb / len(b)
    parts = (va / len(a)) ** 2 / (len(a) - 1) + (vb / len(b)) ** 2 / (len(b) - 1)
    df = error2**2 / parts if parts > 0 else float(len(a) + len(b) - 2)
    return estimate(n, mean, math.sqrt(error2), df, alpha, math.sqrt(va + vb))


def estimate(n: int, mean: float, error: float, df: float, alpha: float, sd: float) -> Estimate:
    """Return a mean with the t interval and the p value that its standard error gives."""
    half = float(stdtrit(df, 1 - alpha / 2)) * error
    certain = 1.0 if mean == 0 else 0.0
    p = 2 * float(stdtr(df, -abs(mean) / error)) if error > 0 else certain
    return Estimate(n, mean, mean - half, mean + half, p, df, sd)


def holm(p_values: Values) -> Values:
    """Return Holm's step-down adjusted p values along the last axis (Holm 1979).

    NaN are no comparisons and stay NaN. (SciPy adjusts for false discoveries alone.)
    """
    p = np.asarray(p_values, dtype=float)
    # Stable, and NaN behind all numbers.
    places = np.argsort(p, axis=-1, kind="stable")
    n = np.count_nonzero(~np.isnan(p), axis=-1, keepdims=True)
    steps = np.take_along_axis(p, places, axis=-1) * (n - np.arange(p.shape[-1]))
    adjusted = np.empty_like(p)
    rising = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
    np.put_along_axis(adjusted, places, rising, axis=-1)
    return adjusted
