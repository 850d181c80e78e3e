"""How coarse a clock is: the grid on which all of its times lie."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["common_grid", "grid_of"]

# The steps at which clocks and pollers tick: 1, 2 or 5 times a power of ten.
_MANTISSAS = (5, 2, 1)
_NS_PER_US = 1000


def grid_of(times_us: npt.NDArray[np.float64]) -> float:
    """Return the largest 1-2-5 step in microseconds that divides all times; NaN for none.

    Steps go down to a nanosecond. Few times may lie on a coarser grid by chance, so the
    grids of many cells are put together with `common_grid`.
    """
    known = times_us[~np.isnan(times_us)]
    in_ns = np.rint(known * _NS_PER_US)
    if not known.size or not np.allclose(in_ns, known * _NS_PER_US, rtol=0, atol=1e-3):
        return math.nan
    return _largest_step(math.gcd(*(int(v) for v in np.unique(in_ns)))) / _NS_PER_US


def common_grid(grids: Iterable[float]) -> float:
    """Return the largest 1-2-5 step that divides all grids; NaN where one is not known."""
    in_fine = [math.nan if math.isnan(g) else round(g * 1e6) for g in grids]
    if not in_fine or any(math.isnan(g) for g in in_fine):
        return math.nan
    return _largest_step(math.gcd(*(int(g) for g in in_fine))) / 1e6


def _largest_step(divisor: int) -> float:
    """Return the largest step that divides a whole number; NaN for zero."""
    if divisor == 0:
        return math.nan
    for power in range(int(math.log10(divisor)), -1, -1):
        for mantissa in _MANTISSAS:
            if divisor % (mantissa * 10**power) == 0:
                return float(mantissa * 10**power)
    return math.nan
