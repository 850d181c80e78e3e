"""One value per arm, prompt length and metric: the mean over launches, with its interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from kvroad.analysis.stats.estimates import Values, pooled_t
from kvroad.analysis.stats.rounding import grid_step, half_step, time_of
from kvroad.analysis.tables import Metric, metrics_of

__all__ = ["centre", "launch_summary"]


def launch_summary(cells: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """Return value and t interval over the proven launches of each arm, prompt and metric.

    Times and rates: geometric mean, interval on the log scale. After-post times, which may
    be zero: arithmetic mean. Fewer than two launches have no interval. Intervals are
    widened by what a coarse clock may have done (``half_step``).
    """
    proven = cells[cells["outcome"] == "proven"]
    steps: dict[tuple[Any, str], float] = {
        (arm, metric.name): grid_step(group, time_of(metric))
        for arm, group in proven.groupby("arm", sort=False)
        for metric in metrics_of(cells)
    }
    rows = [
        {"arm": arm, "prompt_tokens": tokens, "metric": metric.name, "unit": metric.unit}
        | _summary(group, metric, steps[arm, metric.name], alpha)
        for (arm, tokens), group in proven.groupby(["arm", "prompt_tokens"], sort=False)
        for metric in metrics_of(cells)
    ]
    columns = ["arm", "prompt_tokens", "metric", "unit", "n_launches", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _summary(group: pd.DataFrame, metric: Metric, step: float, alpha: float) -> dict[str, float]:
    values = group[metric.name].dropna().to_numpy(dtype=float)
    if not len(values):
        return {"n_launches": 0, "value": math.nan, "low": math.nan, "high": math.nan}
    is_log = _is_log(values, metric)
    mean = pooled_t({0: np.log(values) if is_log else values}, alpha)[0]
    value, low, high = (math.exp(x) if is_log else x for x in (mean.mean, mean.low, mean.high))
    half = half_step(value, float(group[metric.pull].mean()), metric, step)
    return {"n_launches": mean.n, "value": value, "low": low - half, "high": high + half}


def _is_log(values: Values, metric: Metric) -> bool:
    return not metric.is_part and bool((values > 0).all())


def centre(values: Values, metric: Metric) -> float:
    """Return the mean over launches as the summary has it: geometric but for after-post."""
    if not len(values):
        return math.nan
    is_log = _is_log(values, metric)
    return float(np.exp(np.log(values).mean())) if is_log else float(values.mean())
