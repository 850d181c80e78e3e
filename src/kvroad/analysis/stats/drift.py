"""What time alone did: the trend of launch values in the order they were measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvroad.analysis.stats.estimates import Estimate, Values, estimate

__all__ = ["fit_drift", "is_drifting"]


def fit_drift(groups: Sequence[tuple[Values, Values]], alpha: float) -> Estimate:
    """Return the change of the values from the first to the last launch, with its interval.

    Least squares with one slope for all groups and a level for each (analysis of
    covariance: Montgomery, Design and Analysis of Experiments, section 15.3).

    Parameters
    ----------
    groups
        Order and value of each launch; a group is an arm at a prompt length.
    """
    known = [(x[~np.isnan(x)], y[~np.isnan(x)]) for x, y in groups]
    known = [(x, y) for x, y in known if len(x)]
    n = sum(len(x) for x, _ in known)
    if not n:
        return Estimate(0)
    places = np.concatenate([x for x, _ in known])
    span = float(places.max() - places.min())
    x = np.concatenate([x - x.mean() for x, _ in known])
    y = np.concatenate([y - y.mean() for _, y in known])
    df, squares = n - len(known) - 1, float((x**2).sum())
    if df < 1 or squares == 0:
        return Estimate(n)
    slope = float((x * y).sum()) / squares
    sd = float(np.sqrt(((y - slope * x) ** 2).sum() / df))
    return estimate(n, slope * span, span * sd / np.sqrt(squares), df, alpha, sd)


def is_drifting(drift: Estimate, effect: float, alpha: float) -> bool:
    """Return whether the values drifted, and by as much as the arms differ or more."""
    return bool(drift.p_value < alpha and abs(drift.mean) >= abs(effect))
