"""What a coarse clock takes from a stated interval."""

from __future__ import annotations

import math

import pandas as pd

from kvroad.analysis.tables import Metric, common_grid, metric

__all__ = ["grid_step", "half_step"]


def grid_step(cells: pd.DataFrame, what: Metric) -> float:
    """Return the step that all times of a metric lie on, in its unit; NaN where none is known.

    A serving engine sees that a pull is complete once in a step of its own.
    """
    if f"{what.name}_step" in cells:
        # ASSUME a step of the engine takes about as long in every launch.
        return float(cells[f"{what.name}_step"].mean())
    name = f"{what.name}_grid"
    steps = cells[name].dropna() if what.is_time and name in cells else pd.Series(dtype=float)
    return common_grid(steps) if len(steps) else math.nan


def half_step(value: float, pull: float, what: Metric, step: float) -> float:
    """Return how far rounding to a clock's step may have moved a value, in the metric's unit.

    Half a step each way for a time that was read, a whole one for the difference of two.
    A rate moves by the share by which its pull does.

    Parameters
    ----------
    value, pull
        Mean over launches of the metric, and of the pull time of its phase.
    step
        Of the metric, or of the pull where the metric is a rate; NaN: no grid is known.
    """
    if math.isnan(step):
        return 0.0
    if what.is_time:
        return step if what.is_part else step / 2
    return abs(value) * step / 2 / pull if pull > 0 else 0.0


def time_of(what: Metric) -> Metric:
    """Return the metric whose clock decides: its own, or that of the pull for a rate."""
    return what if what.is_time else metric(what.pull)
