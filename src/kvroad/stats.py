"""Launch values to contrasts: paired t on log ratios, pooled over prompt lengths, Holm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr, stdtrit

from kvroad.tables import METRICS, Design, Metric, margin, read_design, write_table

__all__ = [
    "CONTRAST_COLUMNS",
    "Estimate",
    "build",
    "contrasts_frame",
    "holm",
    "launch_summary",
    "pooled_t",
    "welch",
]

Values = npt.NDArray[np.float64]

# A part below this share of both pulls is noise of the clock, not a ratio worth naming.
PART_SHARE = 0.05
# Logs of equal values may differ in their last digit.
_NO_SPREAD = 1e-12

CONTRAST_COLUMNS = [
    "arm",
    "baseline",
    "prompt_tokens",
    "metric",
    "phase",
    "n_pairs",
    "n_arm",
    "n_baseline",
    "ratio",
    "ratio_low",
    "ratio_high",
    "difference",
    "difference_low",
    "difference_high",
    "unit",
    "p_value",
    "p_holm",
    "df",
    "sd",
    "tested",
    "n_comparisons",
    "margin",
    "same_low",
    "same_high",
    "is_interleaved",
    "statistic",
    "baseline_value",
    "arm_value",
    "note",
]


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


@dataclass(frozen=True)
class Sample:
    """Launch values of the two arms at one prompt length.

    When ``is_paired``, entries at the same index are launches of one block; otherwise all
    proven launches of each arm, and ``notes`` say what kept blocks from being paired.
    """

    arm: pd.DataFrame
    baseline: pd.DataFrame
    is_paired: bool
    notes: tuple[str, ...] = ()


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


def _one_mean(y: Values, sd: float, df: float, alpha: float) -> Estimate:
    mean, n = float(y.mean()), len(y)
    if n < 2:
        return Estimate(n, mean, sd=sd)
    return _t_estimate(n, mean, sd / math.sqrt(n), df, alpha, sd)


def welch(a: Values, b: Values, alpha: float) -> Estimate:
    """Return mean(a) - mean(b) with unequal variances (Welch 1947, Satterthwaite's df)."""
    mean, n = float(a.mean() - b.mean()), min(len(a), len(b))
    if n < 2:
        return Estimate(n, mean)
    va, vb = float(a.var(ddof=1)), float(b.var(ddof=1))
    error2 = va / len(a) + vb / len(b)
    parts = (va / len(a)) ** 2 / (len(a) - 1) + (vb / len(b)) ** 2 / (len(b) - 1)
    df = error2**2 / parts if parts > 0 else float(len(a) + len(b) - 2)
    return _t_estimate(n, mean, math.sqrt(error2), df, alpha, math.sqrt(va + vb))


def _t_estimate(n: int, mean: float, error: float, df: float, alpha: float, sd: float) -> Estimate:
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


def launch_summary(cells: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """Return value and t interval over the proven launches of each arm, prompt and metric.

    Times and rates: geometric mean, interval on the log scale. After-post times, which may
    be zero: arithmetic mean. Fewer than two launches have no interval.
    """
    proven = cells[cells["outcome"] == "proven"]
    rows = [
        {"arm": arm, "prompt_tokens": tokens, "metric": metric.name, "unit": metric.unit}
        | _summary(group[metric.name].dropna().to_numpy(dtype=float), metric, alpha)
        for (arm, tokens), group in proven.groupby(["arm", "prompt_tokens"], sort=False)
        for metric in METRICS
    ]
    columns = ["arm", "prompt_tokens", "metric", "unit", "n_launches", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _summary(values: Values, metric: Metric, alpha: float) -> dict[str, Any]:
    if not len(values):
        return {"n_launches": 0, "value": math.nan, "low": math.nan, "high": math.nan}
    is_log = _is_log(values, metric)
    mean = pooled_t({0: np.log(values) if is_log else values}, alpha)[0]
    numbers = {"value": mean.mean, "low": mean.low, "high": mean.high}
    if is_log:
        numbers = {name: math.exp(number) for name, number in numbers.items()}
    return {"n_launches": mean.n, **numbers}


def _is_log(values: Values, metric: Metric) -> bool:
    return not metric.is_part and bool((values > 0).all())


def _centre(values: Values, metric: Metric) -> float:
    if not len(values):
        return math.nan
    is_log = _is_log(values, metric)
    return float(np.exp(np.log(values).mean())) if is_log else float(values.mean())


def contrasts_frame(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Return one row per contrast, metric and prompt length, in the design's order.

    ``ratio`` is arm over baseline from paired log ratios, variance pooled over prompt lengths
    (that of a block's prompts is taken as independent); ``difference`` is paired too, its
    variance per prompt length, since its scale grows with the prompt. Intervals are at
    ``1 - alpha`` each; ``p_holm`` corrects over the contrasts and prompt lengths of a metric.
    ``tested`` names the scale of ``p_value`` and ``sd``; on it, an interval inside
    ``same_low``..``same_high`` is inside the margin.
    """
    rows = []
    for arm, baseline in design.contrasts:
        samples = {p: _sample(cells, arm, baseline, p) for p in design.prompt_tokens}
        for metric in METRICS:
            rows += _metric_rows(samples, metric, design, {"arm": arm, "baseline": baseline})
    frame = pd.DataFrame(rows, columns=CONTRAST_COLUMNS)
    by_metric = frame.groupby("metric", sort=False)["p_value"]
    frame["p_holm"] = by_metric.transform(holm)
    frame["n_comparisons"] = by_metric.transform("count").astype("int64")
    return frame


def _sample(cells: pd.DataFrame, arm: str, baseline: str, prompt_tokens: int) -> Sample:
    """Pair the proven launches of two arms by block where run, boot and versions agree."""
    at_prompt = cells[cells["prompt_tokens"] == prompt_tokens]
    proven = at_prompt[at_prompt["outcome"] == "proven"]
    sides = [proven[proven["arm"] == name].set_index("block") for name in (arm, baseline)]
    planned = [int((at_prompt["arm"] == name).sum()) for name in (arm, baseline)]
    notes = [
        f"{name}: {len(side)} of {n} launches proven"
        for name, side, n in zip((arm, baseline), sides, planned, strict=True)
        if len(side) < n
    ]
    notes += [
        f"{name}: {int(side['n_dropped'].sum())} pulls dropped as data errors"
        for name, side in zip((arm, baseline), sides, strict=True)
        if side["n_dropped"].sum()
    ]
    blocks = sides[0].index.intersection(sides[1].index).sort_values()
    left, right = sides[0].loc[blocks], sides[1].loc[blocks]
    reasons = _unpaired_because(left, right)
    paired = blocks[reasons == ""]
    versions = left.loc[paired, ["nixl_version", "ucx_version"]].drop_duplicates()
    if len(versions) > 1:
        reasons[:] = "versions change between blocks"
    if len(versions) <= 1 and len(paired) >= min(2, len(blocks)) and len(paired):
        left_out = len(blocks) - len(paired)
        if left_out:
            why = ", ".join(sorted(set(reasons[reasons != ""])))
            notes.append(f"{left_out} of {len(blocks)} blocks left out: {why}")
        return Sample(left.loc[paired], right.loc[paired], True, tuple(notes))
    if len(sides[0]) and len(sides[1]):
        why = ", ".join(sorted(set(reasons[reasons != ""]))) or "no block has both arms"
        notes.append(f"not interleaved: {why}")
    return Sample(sides[0], sides[1], False, tuple(notes))


def _unpaired_because(left: pd.DataFrame, right: pd.DataFrame) -> npt.NDArray[np.str_]:
    """Return per block why its two launches are no pair, or an empty text; unknown is unequal."""
    checks = {
        "runs": ["run_id"],
        "boots": ["boot_id"],
        "versions": ["nixl_version", "ucx_version"],
    }
    tests, texts = [], []
    for what, names in checks.items():
        unknown = (left[names].isna() | right[names].isna()).any(axis=1)
        unequal = (left[names] != right[names]).any(axis=1)
        tests += [unknown.to_numpy(), unequal.to_numpy()]
        texts += [f"{what} not known", f"different {what}"]
    return np.select(tests, texts, default="").astype("U32")


def _metric_rows(
    samples: Mapping[int, Sample], metric: Metric, design: Design, names: dict[str, str]
) -> list[dict[str, Any]]:
    values = {p: _values(sample, metric) for p, sample in samples.items()}
    refusals = {p: _no_ratio_because(samples[p], metric, *values[p]) for p in samples}
    logs = {p: (np.log(a), np.log(b)) for p, (a, b) in values.items() if not refusals[p]}
    paired = {p: a - b for p, (a, b) in logs.items() if samples[p].is_paired}
    ratios = pooled_t(paired, design.alpha)
    ratios |= {p: welch(*logs[p], design.alpha) for p in logs.keys() - paired.keys()}
    return [
        names
        | {"prompt_tokens": p, "metric": metric.name, "phase": metric.phase}
        | _row(samples[p], metric, values[p], ratios.get(p), refusals[p], design)
        for p in samples
    ]


def _values(sample: Sample, metric: Metric) -> tuple[Values, Values]:
    arm = sample.arm[metric.name].to_numpy(dtype=float)
    baseline = sample.baseline[metric.name].to_numpy(dtype=float)
    if not sample.is_paired:
        return arm[~np.isnan(arm)], baseline[~np.isnan(baseline)]
    known = ~(np.isnan(arm) | np.isnan(baseline))
    return arm[known], baseline[known]


def _no_ratio_because(sample: Sample, metric: Metric, arm: Values, baseline: Values) -> str:
    if not len(arm) or not len(baseline):
        return "no proven launch of both arms"
    if metric.is_part:
        inside = [
            str(side["arm"].iloc[0])
            for values, side in ((arm, sample.arm), (baseline, sample.baseline))
            if float(values.mean()) <= PART_SHARE * float(side[metric.pull].mean())
        ]
        if inside:
            arms = " and ".join(inside)
            return f"completed inside the post over {arms}: compared as a difference"
    if (arm <= 0).any() or (baseline <= 0).any():
        return "no ratio of values that are not above zero"
    return ""


def _difference(sample: Sample, arm: Values, baseline: Values, alpha: float) -> Estimate:
    if not len(arm) or not len(baseline):
        return Estimate(0)
    if sample.is_paired:
        return pooled_t({0: arm - baseline}, alpha)[0]
    return welch(arm, baseline, alpha)


def _row(
    sample: Sample,
    metric: Metric,
    values: tuple[Values, Values],
    log_ratio: Estimate | None,
    refusal: str,
    design: Design,
) -> dict[str, Any]:
    arm, baseline = values
    difference = _difference(sample, arm, baseline, design.alpha)
    tested = log_ratio or difference
    share = margin(design, metric)
    is_both = bool(len(arm) and len(baseline))
    ratio = {} if log_ratio is None else _exponentials(log_ratio)
    if log_ratio is None:
        # ASSUME the baseline's pull is known exactly when it serves as the measure of a margin.
        limit = share * float(sample.baseline[metric.pull].mean())
        same = (-limit, limit)
    else:
        same = (1 / (1 + share), 1 + share)
    return ratio | {
        "n_pairs": len(arm) if sample.is_paired else 0,
        "n_arm": len(arm),
        "n_baseline": len(baseline),
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "unit": metric.unit,
        "p_value": tested.p_value,
        "df": tested.df,
        "sd": tested.sd,
        "tested": ("difference" if log_ratio is None else "ratio") if is_both else "none",
        "margin": share,
        "same_low": same[0],
        "same_high": same[1],
        "is_interleaved": sample.is_paired and is_both,
        "statistic": "median",
        "baseline_value": _centre(baseline, metric),
        "arm_value": _centre(arm, metric),
        "note": "; ".join([*sample.notes, *_estimate_notes(tested, refusal)]),
    }


def _exponentials(estimate: Estimate) -> dict[str, float]:
    names = {"ratio": estimate.mean, "ratio_low": estimate.low, "ratio_high": estimate.high}
    return {name: math.exp(value) for name, value in names.items()}


def _estimate_notes(tested: Estimate, refusal: str) -> list[str]:
    notes = [refusal] if refusal else []
    if tested.n == 1:
        notes.append("one launch each: no interval")
    if tested.sd < _NO_SPREAD:
        notes.append("no spread between launches: the clock may be too coarse to see it")
    return notes


def build(cells_parquet: Path | str, design_path: Path | str, out_dir: Path | str) -> None:
    """Write ``contrasts`` and ``launch_summary`` (.parquet and .csv) into ``out_dir``."""
    design, out = read_design(Path(design_path)), Path(out_dir)
    cells = pd.read_parquet(cells_parquet)
    write_table(contrasts_frame(cells, design), out / "contrasts")
    write_table(launch_summary(cells, design.alpha), out / "launch_summary")
