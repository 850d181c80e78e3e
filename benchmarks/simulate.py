"""Launches with a known truth, judged as measured ones are; many studies at a time.

The formulas are those of `kvroad.analysis.stats` written for arrays (tests hold the two together).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr, stdtrit
from scipy.stats import bartlett

from kvroad.analysis.stats.estimates import UNEVEN_LEVEL, holm
from kvroad.analysis.stats.flags import FLOOR_SHARE
from kvroad.analysis.stats.outliers import NORMAL, outlier_limit
from kvroad.study.design import make_design
from kvroad.study.fields import Claims, Engine, Host, Model, Study, Transport, Variant, Workload

__all__ = [
    "DRIFT",
    "NOISES",
    "PROMPTS",
    "SD",
    "SLOW_CHANCE",
    "SLOW_FACTOR",
    "UNEVEN",
    "Studies",
    "Truth",
    "draw",
    "judge",
    "simulate",
]

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NOISES = ("normal", "heavy tails", "drift", "slow launches", "uneven spread")
PROMPTS = 3
# The spread of a launch's value, as a share of it, in every study.
SD = 0.02
# Growth from the first launch of a study to its last.
DRIFT = 0.10
# A launch of the arm, never of the baseline, is slow with this chance, by this factor.
SLOW_CHANCE, SLOW_FACTOR = 0.10, 1.30
# The spread at each prompt length, as multiples of `SD`.
UNEVEN = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Truth:
    """What is true of simulated studies, what disturbs it, and how it is measured.

    ``n_arms`` counts the baseline; every other arm is compared with it at three prompt
    lengths, and Holm's correction runs over all of these comparisons.
    """

    ratio: float
    noise: str
    launches: int
    n_arms: int = 2


@dataclass(frozen=True)
class Studies:
    """Simulated studies.

    Parameters
    ----------
    logs
        Logs of launch values; shape (studies, arms, prompt lengths, launches).
    order
        Place of each launch in its study; shape (arms, prompt lengths, launches).
    is_slow
        Which launches were made slow.
    """

    logs: Values
    order: Values
    is_slow: Flags


def launch_order(n_arms: int, launches: int) -> Values:
    """Return the place of each launch in the order that the design gives."""
    names = [f"arm{i}" for i in range(n_arms)]
    lengths = list(range(1, PROMPTS + 1))
    study = Study(
        name="simulated",
        host=Host("none"),
        engine=Engine(),
        transports={name: Transport(roads=["tcp"], ucx_tls=["tcp"]) for name in names},
        variants={"blocks": Variant()},
        model=Model("none", 1, 1, 1, 8),
        workload=Workload(),
        claims=Claims(),
        prompt_tokens=lengths,
        launches=launches,
        baseline=names[0],
    )
    order = np.empty((n_arms, PROMPTS, launches))
    for place, cell in enumerate(make_design(study).cells):
        order[names.index(cell.arm), lengths.index(cell.prompt_tokens), cell.block] = place
    return order


def draw(truth: Truth, n: int, rng: np.random.Generator) -> Studies:
    """Draw ``n`` studies of which it holds; the baseline is the first arm."""
    order = launch_order(truth.n_arms, truth.launches)
    shape = (n, *order.shape)
    if truth.noise == "heavy tails":
        # Student's t with 3 degrees of freedom has variance 3.
        logs = rng.standard_t(3, shape) * SD / math.sqrt(3)
    else:
        logs = rng.normal(0.0, SD, shape)
    is_slow = np.zeros(shape, dtype=bool)
    if truth.noise == "drift":
        logs += math.log1p(DRIFT) * order / order.max()
    if truth.noise == "uneven spread":
        # The logs are still those of equal arms here.
        logs *= np.array(UNEVEN)[:, None]
    logs[:, 1:] += math.log(truth.ratio)
    if truth.noise == "slow launches":
        is_slow[:, 1:] = rng.random((n, *order[1:].shape)) < SLOW_CHANCE
        logs += is_slow * math.log(SLOW_FACTOR)
    return Studies(logs, order, is_slow)


@dataclass(frozen=True)
class Judged:
    """What the studies say; arrays of shape (studies, contrasts, prompt lengths)."""

    means: Values
    lows: Values
    highs: Values
    p_values: Values
    p_holm: Values
    is_outlier: Flags
    is_drifting: Flags
    is_uneven: Flags


def judge(studies: Studies, alpha: float) -> Judged:
    """Contrast every arm with the first: pooled paired t, Holm, and both flags."""
    y = studies.logs[:, 1:] - studies.logs[:, :1]
    means = y.mean(axis=-1)
    half, p, is_uneven = _intervals(y, means, alpha)
    flat = holm(p.reshape(len(p), -1)).reshape(p.shape)
    drift = _drift(studies, alpha)
    return Judged(
        means,
        means - half,
        means + half,
        p,
        flat,
        _outliers(y, alpha),
        (drift[1] < alpha)[..., None] & (np.abs(drift[0])[..., None] >= np.abs(means)),
        is_uneven & np.ones_like(means, dtype=bool),
    )


def _intervals(y: Values, means: Values, alpha: float) -> tuple[Values, Values, Flags]:
    """Return half widths and p values of `guarded_t`, and where the spreads are uneven."""
    n, k = y.shape[-1], y.shape[-2]
    single = y.var(axis=-1, ddof=1)
    pooled = single.mean(axis=-1, keepdims=True)
    p_even = bartlett(*np.moveaxis(y, -2, 0), axis=-1).pvalue
    is_uneven = (p_even < UNEVEN_LEVEL)[..., None]
    halves, p_values = [], []
    for variance, df in ((pooled, k * (n - 1)), (single, n - 1)):
        error = np.sqrt(variance / n) * np.ones_like(means)
        halves.append(float(stdtrit(df, 1 - alpha / 2)) * error)
        p_values.append(2 * stdtr(df, -np.abs(means) / error))
    is_own = is_uneven & (halves[1] > halves[0])
    half, p = (np.where(is_own, single_, pooled_) for pooled_, single_ in (halves, p_values))
    return half, p, is_uneven


def _outliers(y: Values, alpha: float) -> Flags:
    """Return which comparisons have a launch that stands apart."""
    away = y - np.median(y, axis=-1, keepdims=True)
    scale = NORMAL * np.median(np.abs(away), axis=(-1, -2), keepdims=True)
    limit = outlier_limit((y.shape[-1],) * y.shape[-2], alpha)
    return np.asarray((np.abs(away) / np.maximum(scale, FLOOR_SHARE)).max(axis=-1) > limit)


def _drift(studies: Studies, alpha: float) -> tuple[Values, Values]:
    """Return drift over the study and its p value; shape (studies, contrasts)."""
    pairs = [
        (studies.logs[:, [0, arm]], studies.order[[0, arm]])
        for arm in range(1, studies.logs.shape[1])
    ]
    sizes, p_values = [], []
    for logs, order in pairs:
        x = order - order.mean(axis=-1, keepdims=True)
        y = logs - logs.mean(axis=-1, keepdims=True)
        squares = float((x**2).sum())
        slope = (x * y).sum(axis=(-1, -2, -3)) / squares
        residual = ((y - slope[:, None, None, None] * x) ** 2).sum(axis=(-1, -2, -3))
        df = x.size - x.shape[0] * x.shape[1] - 1
        error = np.sqrt(residual / df / squares)
        sizes.append(slope * (order.max() - order.min()))
        p_values.append(2 * stdtr(df, -np.abs(slope) / error))
    return np.stack(sizes, axis=1), np.stack(p_values, axis=1)


def simulate(
    truths: Sequence[Truth], n: int, seed: int, alpha: float, margin: float
) -> pd.DataFrame:
    """Return a row per truth: shares over ``n`` studies, each with its standard error.

    ``coverage`` of the true ratio by an interval (``worst_coverage``: at the prompt length
    where it is least); ``false_rate``: studies with any difference found (a false one where
    the ratio is 1); ``apart``: comparisons where one is found; ``shown`` and ``same``: those
    with the words faster or slower, and with the word same, which goes first;
    ``outlier_flag``, ``drift_flag``, ``uneven_flag``: comparisons flagged; ``flag_if_slow``:
    of those with a slow launch. Errors are over studies, whose comparisons are not independent.
    """
    rows = []
    for number, truth in enumerate(truths):
        rng = np.random.default_rng([seed, number])
        studies = draw(truth, n, rng)
        rows.append(_row(truth, studies, judge(studies, alpha), alpha, margin))
    return pd.DataFrame(rows)


def _row(
    truth: Truth, studies: Studies, judged: Judged, alpha: float, margin: float
) -> dict[str, Any]:
    log_ratio, bound = math.log(truth.ratio), math.log1p(margin)
    same = (judged.lows >= -bound) & (judged.highs <= bound)
    apart = (judged.p_holm < alpha) & ((judged.lows > 0) | (judged.highs < 0))
    shown = apart & ~same
    slow = studies.is_slow[:, 1:].any(axis=-1)
    row: dict[str, Any] = {
        "ratio": truth.ratio,
        "noise": truth.noise,
        "launches": truth.launches,
        "n_arms": truth.n_arms,
    }
    shares = {
        "coverage": (judged.lows <= log_ratio) & (log_ratio <= judged.highs),
        "apart": apart,
        "shown": shown,
        "same": same,
        "outlier_flag": judged.is_outlier,
        "drift_flag": judged.is_drifting,
        "uneven_flag": judged.is_uneven,
    }
    for name, flags in shares.items():
        row |= _share(name, flags.reshape(len(flags), -1).mean(axis=1))
    covered = shares["coverage"].reshape(len(studies.logs), -1, PROMPTS)
    row["worst_coverage"] = float(covered.mean(axis=(0, 1)).min())
    row |= _share("false_rate", apart.reshape(len(apart), -1).any(axis=1).astype(float))
    of_slow = judged.is_outlier[slow].astype(float)
    return row | _share("flag_if_slow", of_slow if of_slow.size else np.full(1, np.nan))


def _share(name: str, values: Values) -> dict[str, float]:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {name: float(values.mean()), f"{name}_error": float(error)}
