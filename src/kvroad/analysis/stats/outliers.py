"""Launches that stand apart from the others of their arm: found and named, never removed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kvroad.analysis.stats.estimates import Values

__all__ = ["outlier_limit", "robust_z"]

# Makes the median absolute deviation of normal values their standard deviation.
NORMAL = 1.4826
_DRAWS = 4000
_SEED = 1979
# Two values are as far from their median as each other: neither stands apart.
_LEAST = 3


def robust_z(groups: Sequence[Values], floor: float) -> list[Values]:
    """Return each value's distance from its group's median in robust standard deviations.

    The scale is the median absolute distance over all groups times 1.4826, and no less
    than ``floor``; groups of fewer than three values are left at zero.
    """
    distances = [y - np.median(y) if len(y) >= _LEAST else np.zeros(len(y)) for y in groups]
    known = [d for d in distances if len(d) >= _LEAST]
    if not known:
        return distances
    scale = max(NORMAL * float(np.median(np.abs(np.concatenate(known)))), floor)
    return [d / scale if scale > 0 else d for d in distances]


@lru_cache(maxsize=256)
def outlier_limit(sizes: tuple[int, ...], alpha: float) -> float:
    """Return the distance that the farthest of normal values passes with chance ``alpha``.

    Known fixed limits (3.5 and the like) raise false flags in half of all small samples, so
    it is found by drawing normal samples of the same sizes, 4,000 times with a fixed seed.
    """
    sizes = tuple(n for n in sizes if n >= _LEAST)
    if not sizes:
        return float("inf")
    rng = np.random.default_rng(_SEED)
    draws = [rng.normal(size=(_DRAWS, n)) for n in sizes]
    away = [np.abs(y - np.median(y, axis=1, keepdims=True)) for y in draws]
    every = np.concatenate(away, axis=1)
    z = every.max(axis=1) / (NORMAL * np.median(every, axis=1))
    return float(np.quantile(z, 1 - alpha))
