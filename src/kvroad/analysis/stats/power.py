"""Before a run: what interval, and what chance of a word, the planned launches give."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import gammaincinv, gammaln, ndtr, stdtrit

from kvroad.analysis.stats.estimates import Values
from kvroad.analysis.tables import METRICS

__all__ = [
    "chance_of_difference",
    "chance_of_same",
    "expected_half_width",
    "plan_power",
    "spread_of_contrasts",
    "spread_of_summary",
]

# Places at which the distribution of the estimated spread is summed. The noncentral t of
# scipy.special (1.17) is no way round it: it is NaN where the chance is near one.
_PLACES = 2000


def expected_half_width(sd: float, launches: int, alpha: float, n_prompts: int = 1) -> float:
    """Return the mean half width of the interval of a log ratio.

    Parameters
    ----------
    sd
        True standard deviation of a block's log ratio.
    n_prompts
        Prompt lengths over which the variance is pooled: df = n_prompts · (launches - 1).
    """
    df = n_prompts * (launches - 1)
    if df < 1:
        return math.inf
    # The mean of a sample's standard deviation, as a share of the true one.
    mean = math.sqrt(2 / df) * math.exp(gammaln((df + 1) / 2) - gammaln(df / 2))
    return float(stdtrit(df, 1 - alpha / 2)) * mean * sd / math.sqrt(launches)


def chance_of_same(
    sd: float, launches: int, margin: float, alpha: float, n_prompts: int = 1, ratio: float = 1.0
) -> float:
    """Return the chance that the whole interval lies inside the margin.

    Exact for normal log ratios: mean ~ N(log ratio, sd²/n) independent of s², and
    df · s²/sd² ~ chi²(df); the sum over s² is taken at 2,000 of its quantiles.
    """
    df = n_prompts * (launches - 1)
    if df < 1 or not margin > 0:
        return 0.0
    error, shift = sd / math.sqrt(launches), math.log(ratio)
    room = math.log1p(margin) - stdtrit(df, 1 - alpha / 2) * _spreads(df) * error
    inside = ndtr((room - shift) / error) - ndtr((-room - shift) / error)
    return float(np.where(room > 0, inside, 0.0).mean())


def _spreads(df: int) -> Values:
    """Return quantiles of the estimated spread, as shares of the true one."""
    share = (np.arange(_PLACES) + 0.5) / _PLACES
    return np.asarray(np.sqrt(2 * gammaincinv(df / 2, share) / df), dtype=float)


def chance_of_difference(
    sd: float,
    launches: int,
    ratio: float,
    alpha: float,
    n_prompts: int = 1,
    n_comparisons: int = 1,
) -> float:
    """Return the chance that a ratio is shown to differ from one.

    At ``alpha / n_comparisons``, Holm's worst case: the chance is at least this. The sum is
    that of `chance_of_same`, and so the noncentral t distribution.
    """
    df = n_prompts * (launches - 1)
    if df < 1:
        return 0.0
    limit = float(stdtrit(df, 1 - alpha / n_comparisons / 2)) * _spreads(df)
    shift = math.log(ratio) * math.sqrt(launches) / sd
    return float((ndtr(shift - limit) + ndtr(-shift - limit)).mean())


def spread_of_contrasts(contrasts: pd.DataFrame) -> dict[str, float]:
    """Return per metric the spread of a block's log ratio over the contrasts of a study.

    The root mean square of their standard deviations, weighted by degrees of freedom.
    """
    known = contrasts[(contrasts["tested"] == "ratio") & (contrasts["sd"] > 0)]
    # The prompt lengths of a contrast share one spread, so they count once.
    known = known.drop_duplicates(["arm", "baseline", "metric", "sd"])
    squares = known["df"] * known["sd"] ** 2
    sums = squares.groupby(known["metric"]).sum() / known.groupby("metric")["df"].sum()
    return {str(name): math.sqrt(value) for name, value in sums.items()}


def spread_of_summary(summary: pd.DataFrame, alpha: float = 0.05) -> dict[str, float]:
    """Return per metric the spread of a log ratio that the launch summary of a study suggests.

    From the width of each arm's interval; two arms vary by the square root of two more than
    one, which is too much where a block moves both.
    """
    known = summary[(summary["n_launches"] > 1) & (summary["low"] > 0)]
    freedom: dict[str, float] = {}
    squares: dict[str, float] = {}
    for row in known.to_dict("records"):
        name, n = str(row["metric"]), int(row["n_launches"])
        t = float(stdtrit(n - 1, 1 - alpha / 2))
        sd = math.log(row["high"] / row["low"]) / 2 * math.sqrt(n) / t
        freedom[name] = freedom.get(name, 0.0) + n - 1
        squares[name] = squares.get(name, 0.0) + (n - 1) * sd**2
    parts = {m.name for m in METRICS if m.is_part}
    return {m: math.sqrt(2 * squares[m] / df) for m, df in freedom.items() if m not in parts}


def plan_power(
    spreads: Mapping[str, float],
    margins: Mapping[str, float],
    *,
    launches: int,
    alpha: float,
    n_prompts: int,
    n_comparisons: int,
    ratio: float = 1.15,
) -> pd.DataFrame:
    """Return per metric what the planned launches give, from the spread seen so far.

    Columns: ``metric``, ``launches``, ``sd`` (of a block's log ratio), ``interval_low`` and
    ``interval_high`` (mean limits around a ratio of 1), ``margin``, ``chance_of_same`` (where
    there is no difference), ``ratio`` and ``chance_of_difference`` (where it is that large).
    """
    rows = []
    for metric, sd in spreads.items():
        half = expected_half_width(sd, launches, alpha, n_prompts)
        share = margins.get(metric, math.nan)
        rows.append(
            {
                "metric": metric,
                "launches": launches,
                "sd": sd,
                "interval_low": math.exp(-half),
                "interval_high": math.exp(half),
                "margin": share,
                "chance_of_same": chance_of_same(sd, launches, share, alpha, n_prompts),
                "ratio": ratio,
                "chance_of_difference": chance_of_difference(
                    sd, launches, ratio, alpha, n_prompts, n_comparisons
                ),
            }
        )
    return pd.DataFrame(rows)
