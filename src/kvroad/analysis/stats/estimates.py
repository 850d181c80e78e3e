"""Means with intervals: paired and pooled t, Welch's t, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import chdtrc, stdtr, stdtrit

__all__ = ["Estimate", "Values", "estimate", "guarded_t", "holm", "is_uneven", "pooled_t", "welch"]

Values = npt.NDArray[np.float64]

# Level of the test that calls the spreads of groups uneven. Generous, since an interval that
# is too wide costs launches and one that is too narrow costs the truth.
_UNEVEN = 0.10


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
    own = {key: pooled_t({key: y}, alpha).get(key) for key, y in groups.items()}
    return {key: _wider(estimate, own[key]) for key, estimate in pooled.items()}


def _wider(pooled: Estimate, own: Estimate | None) -> Estimate:
    is_wider = own is not None and own.high - own.low > pooled.high - pooled.low
    return own if own is not None and is_wider else pooled


def is_uneven(groups: Mapping[int, Values]) -> bool:
    """Return whether the variances of the groups differ by Bartlett's test at the 10 % level.

    Groups of fewer than three values are left out (Montgomery, section 3.4.3).
    """
    told = [y for y in groups.values() if len(y) > 2]
    if len(told) < 2:
        return False
    freedom = np.array([len(y) - 1 for y in told], dtype=float)
    variances = np.array([y.var(ddof=1) for y in told])
    if not (variances > 0).all():
        return bool((variances > 0).any())
    total, k = freedom.sum(), len(told)
    pooled = (freedom * variances).sum() / total
    statistic = total * np.log(pooled) - (freedom * np.log(variances)).sum()
    correction = 1 + ((1 / freedom).sum() - 1 / total) / (3 * (k - 1))
    return bool(chdtrc(k - 1, statistic / correction) < _UNEVEN)


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


def holm(p_values: pd.Series[float]) -> pd.Series[float]:
    """Return Holm's step-down adjusted p values (Holm 1979); NaN are no comparisons."""
    known = p_values.dropna().sort_values(kind="stable")
    factors = np.arange(len(known), 0, -1)
    adjusted = (known * factors).cummax().clip(upper=1.0)
    return adjusted.reindex(p_values.index)
