"""Launch values to contrasts: paired t on log ratios, pooled over prompt lengths, Holm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

import numpy as np
import pandas as pd

from kvroad.analysis.stats.drift import is_drifting
from kvroad.analysis.stats.estimates import (
    Estimate,
    Values,
    guarded_t,
    holm,
    is_uneven,
    pooled_t,
    welch,
)
from kvroad.analysis.stats.flags import Flags, find_flags
from kvroad.analysis.stats.hosts import hosts_of, is_host_dependent, listed_hosts, within_hosts
from kvroad.analysis.stats.pairs import Sample, find_sample
from kvroad.analysis.stats.rounding import grid_step, half_step, time_of
from kvroad.analysis.stats.summary import centre
from kvroad.analysis.tables import DesignFile, Metric, margin, metrics_of, statistic_of
from kvroad.study.serving import AGGREGATED

__all__ = ["CONTRAST_COLUMNS", "ContrastRow", "contrasts_frame"]

# A part below this share of both pulls is noise of the clock, not a ratio worth naming.
PART_SHARE = 0.05
AS_DIFFERENCE = "compared as a difference"
# Logs of equal values may differ in their last digit.
_NO_SPREAD = 1e-12
# A clock that adds less than this to an interval, or to a pull, is not worth a word.
_NOTED_SHARE, _NOTED_LEAST = 0.1, 1e-3


class ContrastRow(TypedDict):
    """One row of the contrasts, see `contrasts_frame`; what cannot be had is NaN."""

    arm: str
    baseline: str
    prompt_tokens: int
    metric: str
    phase: str
    n_pairs: int
    n_arm: int
    n_baseline: int
    ratio: float
    ratio_low: float
    ratio_high: float
    difference: float
    difference_low: float
    difference_high: float
    unit: str
    p_value: float
    p_holm: float
    df: float
    sd: float
    tested: str
    n_comparisons: int
    margin: float
    same_low: float
    same_high: float
    is_interleaved: bool
    statistic: str
    baseline_value: float
    arm_value: float
    drift: float
    drift_low: float
    drift_high: float
    is_drifting: bool
    n_outliers: int
    outliers: str
    grid: float
    is_quantised: bool
    is_uneven: bool
    hosts: str
    is_host_dependent: bool
    withheld: str
    note: str


CONTRAST_COLUMNS = list(ContrastRow.__annotations__)


def contrasts_frame(cells: pd.DataFrame, design: DesignFile) -> pd.DataFrame:
    """Return one row per contrast, metric and prompt length of both arms, in the design's order.

    ``ratio`` is arm over baseline from paired log ratios, variance pooled over prompt lengths
    (that of a block's prompts is taken as independent; where their spreads are uneven, see
    `guarded_t`); ``difference`` is paired too, its
    variance per prompt length, since its scale grows with the prompt. Intervals are at
    ``1 - alpha`` each, widened by what a coarse clock may have done; ``p_holm`` corrects over
    the contrasts and prompt lengths of a metric. ``tested`` names the scale of ``p_value``,
    ``sd`` and ``drift`` (the change from the first to the last launch); on it, an interval
    inside ``same_low``..``same_high`` is inside the margin. ``withheld`` names a difference
    between the arms that neither declares; then nothing is compared.

    Others build on this name and on `CONTRAST_COLUMNS`: a column may be added behind them,
    none goes or changes what it means.
    """
    rows = []
    for names in design.contrasts:
        lengths = design.shared_prompt_tokens(names)
        samples = {p: find_sample(cells, design, names, p) for p in lengths}
        for metric in metrics_of(cells):
            if metric.needs_transfer and _has_none(names, design):
                continue
            rows += _metric_rows(samples, metric, design, names)
    frame = pd.DataFrame(rows, columns=CONTRAST_COLUMNS)
    by_metric = frame.groupby("metric", sort=False)["p_value"]
    frame["p_holm"] = by_metric.transform(lambda p: pd.Series(holm(p.to_numpy()), p.index))
    frame["n_comparisons"] = by_metric.transform("count").astype("int64")
    return frame


def _has_none(names: tuple[str, str], design: DesignFile) -> bool:
    """Return whether one of two arms is served by an engine alone, which transfers nothing."""
    alone = {cell.arm for cell in design.cells if cell.transport == AGGREGATED}
    return not alone.isdisjoint(names)


def _metric_rows(
    samples: Mapping[int, Sample], metric: Metric, design: DesignFile, names: tuple[str, str]
) -> list[ContrastRow]:
    samples = {p: _with_values(sample, metric) for p, sample in samples.items()}
    refusals = {p: _no_ratio_because(sample, metric) for p, sample in samples.items()}
    as_ratio = {p: s for p, s in samples.items() if not refusals[p]}
    others = {p: s for p, s in samples.items() if refusals[p] and not s.withheld}
    logs = {p: _logs(sample, metric) for p, sample in as_ratio.items()}
    paired = {p: a - b for p, (a, b) in logs.items() if samples[p].is_paired}
    ratios = guarded_t(paired, design.alpha)
    ratios |= {p: _unpaired(samples[p], logs[p], design.alpha) for p in logs.keys() - paired.keys()}
    flags = find_flags(as_ratio, metric, design.alpha, is_log=True)
    flags |= find_flags(others, metric, design.alpha, is_log=False)
    if is_uneven(paired):
        flags |= {p: replace(flags[p], is_uneven=True) for p in paired}
    by_host = {p: (y, hosts_of(samples[p].arm)) for p, y in paired.items()}
    if is_host_dependent(by_host, design.alpha):
        flags |= {p: replace(flags[p], by_host=_by_host(*by_host[p])) for p in paired}
    steps = _steps(samples, metric)
    return [
        _row(names, p, samples[p], metric, ratios.get(p), flags.get(p), steps, refusals[p], design)
        for p in samples
    ]


def _with_values(sample: Sample, metric: Metric) -> Sample:
    """Return the sample without the launches, and pairs, that lack the metric."""
    arm, baseline = sample.arm[metric.name].notna(), sample.baseline[metric.name].notna()
    if arm.all() and baseline.all():
        # Copies of all columns, of each metric and length, take long.
        return sample
    if sample.is_paired:
        arm = baseline = arm & baseline
    return replace(sample, arm=sample.arm[arm], baseline=sample.baseline[baseline])


def _values(sample: Sample, metric: Metric) -> tuple[Values, Values]:
    sides = (sample.arm, sample.baseline)
    arm, baseline = (side[metric.name].to_numpy(dtype=float) for side in sides)
    return arm, baseline


def _logs(sample: Sample, metric: Metric) -> tuple[Values, Values]:
    arm, baseline = _values(sample, metric)
    return np.log(arm), np.log(baseline)


def _unpaired(sample: Sample, values: tuple[Values, Values], alpha: float) -> Estimate:
    hosts = hosts_of(sample.arm), hosts_of(sample.baseline)
    if len({*hosts[0], *hosts[1]}) > 1:
        return within_hosts(*values, hosts, alpha)
    return welch(*values, alpha)


def _by_host(log_ratios: Values, hosts: list[str]) -> str:
    means = pd.Series(log_ratios).groupby(hosts).mean()
    return ", ".join(f"{host} {math.exp(mean):.3g}" for host, mean in means.items())


def _no_ratio_because(sample: Sample, metric: Metric) -> str:
    arm, baseline = _values(sample, metric)
    if sample.withheld:
        return f"withheld: {sample.withheld}, which no variant declares"
    if not len(arm) or not len(baseline):
        return "no proven launch of both arms"
    if metric.is_difference:
        return AS_DIFFERENCE
    if metric.is_part:
        inside = [
            str(side["arm"].iloc[0])
            for side in (sample.arm, sample.baseline)
            if float(side[metric.name].mean()) <= PART_SHARE * float(side[metric.pull].mean())
        ]
        if inside:
            arms = " and ".join(inside)
            return f"completed inside the post over {arms}: compared as a difference"
    if (arm <= 0).any() or (baseline <= 0).any():
        return "no ratio of values that are not above zero"
    return ""


def _steps(samples: Mapping[int, Sample], metric: Metric) -> tuple[float, float]:
    """Return the clock's step of arm and baseline, over all prompt lengths."""
    clock = time_of(metric)
    arm = grid_step(pd.concat([s.arm for s in samples.values()]), clock)
    baseline = grid_step(pd.concat([s.baseline for s in samples.values()]), clock)
    return arm, baseline


def _difference(sample: Sample, metric: Metric, alpha: float) -> Estimate:
    arm, baseline = _values(sample, metric)
    if not len(arm) or not len(baseline) or sample.withheld:
        return Estimate(0)
    if sample.is_paired:
        return pooled_t({0: arm - baseline}, alpha)[0]
    return _unpaired(sample, (arm, baseline), alpha)


def _row(
    names: tuple[str, str],
    prompt_tokens: int,
    sample: Sample,
    metric: Metric,
    log_ratio: Estimate | None,
    flags: Flags | None,
    steps: tuple[float, float],
    refusal: str,
    design: DesignFile,
) -> ContrastRow:
    arm, baseline = _values(sample, metric)
    centres = centre(arm, metric), centre(baseline, metric)
    difference = _difference(sample, metric, design.alpha)
    tested, is_log = log_ratio or difference, log_ratio is not None
    has_data = bool(len(arm) and len(baseline)) and not sample.withheld
    halves = [
        half_step(value, float(side[metric.pull].mean()), metric, step)
        for value, side, step in zip(centres, (sample.arm, sample.baseline), steps, strict=True)
    ]
    step = np.nan if not metric.is_time or np.isnan(steps).all() else float(np.nanmax(steps))
    is_quantised = _is_quantised(sample, metric, tested, halves, centres, is_log=is_log)
    notes = [refusal] if refusal and refusal != AS_DIFFERENCE else []
    notes += _estimate_notes(tested)
    if is_quantised:
        notes.append(_grid_note(sample, metric, step))
    ratio, ratio_low, ratio_high = _ratio(log_ratio, halves, centres)
    share, same_low, same_high = _same(sample, metric, design, is_ratio=is_log)
    flags = flags or Flags(Estimate(0), ())
    numbers = flags.drift.mean, flags.drift.low, flags.drift.high
    drift, drift_low, drift_high = map(math.exp, numbers) if is_log else numbers
    has_drifted = is_drifting(flags.drift, tested.mean, design.alpha)
    if has_drifted:
        by = f"a factor of {drift:.3g}" if is_log else f"{drift:+.3g}"
        notes.append(f"values drifted by {by} over the study, as much as the arms differ or more")
    return ContrastRow(
        arm=names[0],
        baseline=names[1],
        prompt_tokens=prompt_tokens,
        metric=metric.name,
        phase=metric.phase,
        n_pairs=len(arm) if sample.is_paired else 0,
        n_arm=len(arm),
        n_baseline=len(baseline),
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        difference=difference.mean,
        difference_low=difference.low - sum(halves),
        difference_high=difference.high + sum(halves),
        unit=metric.unit,
        p_value=tested.p_value,
        # Over all contrasts of the metric: `contrasts_frame` has them.
        p_holm=math.nan,
        n_comparisons=0,
        df=tested.df,
        sd=tested.sd,
        tested=("ratio" if is_log else "difference") if has_data else "none",
        margin=share,
        same_low=same_low,
        same_high=same_high,
        is_interleaved=sample.is_paired and has_data,
        statistic=_statistic(sample, metric),
        baseline_value=centres[1],
        arm_value=centres[0],
        drift=drift,
        drift_low=drift_low,
        drift_high=drift_high,
        is_drifting=has_drifted,
        n_outliers=len(flags.outliers),
        outliers=", ".join(flags.outliers),
        grid=step,
        is_quantised=is_quantised,
        is_uneven=flags.is_uneven,
        hosts=listed_hosts(sample.arm),
        is_host_dependent=bool(flags.by_host),
        withheld=sample.withheld,
        note="; ".join([*sample.notes, *notes, *_flag_notes(flags)]),
    )


def _grid_note(sample: Sample, metric: Metric, step: float) -> str:
    if f"{metric.name}_step" in sample.arm:
        return (
            f"decode sees the end of a pull once in a step of about {step:.3g} {metric.unit}: "
            "the interval is widened by it"
        )
    return f"times lie on a grid of {step:g} {metric.unit}: the interval is widened by it"


def _statistic(sample: Sample, metric: Metric) -> str:
    """Say what a launch's value is; see `statistic_of`."""
    known = {s for side in (sample.arm, sample.baseline) for s in side.get("statistic", ())}
    return statistic_of(metric, is_served=known == {"mean"})


def _ratio(
    log_ratio: Estimate | None, halves: list[float], centres: tuple[float, float]
) -> tuple[float, float, float]:
    """Return ratio and interval, each value moved by its half step to either side."""
    if log_ratio is None:
        return math.nan, math.nan, math.nan
    (a, b), (arm, baseline) = halves, centres
    low, high = math.exp(log_ratio.low), math.exp(log_ratio.high)
    return (
        math.exp(log_ratio.mean),
        low * max(arm - a, 0.0) / arm * baseline / (baseline + b),
        high * (arm + a) / arm * (baseline / (baseline - b) if baseline > b else math.inf),
    )


def _is_quantised(
    sample: Sample,
    metric: Metric,
    tested: Estimate,
    halves: list[float],
    centres: tuple[float, float],
    *,
    is_log: bool,
) -> bool:
    """Return whether the clock widens an interval by enough to be worth a word."""
    if is_log:
        added, least = sum(h / c for h, c in zip(halves, centres, strict=True)), _NOTED_LEAST
    else:
        added = sum(halves)
        least = _NOTED_LEAST * float(sample.baseline[metric.pull].mean())
    return bool(added > max(_NOTED_SHARE * (tested.high - tested.low) / 2, least))


def _same(
    sample: Sample, metric: Metric, design: DesignFile, *, is_ratio: bool
) -> tuple[float, float, float]:
    """Return the margin, and the limits inside which an interval is inside it."""
    share = margin(design.margins, metric)
    if is_ratio:
        return share, 1 / (1 + share), 1 + share
    # ASSUME the baseline's pull is known exactly when it serves as the measure of a margin.
    limit = share * float(sample.baseline[metric.pull].mean())
    return share, -limit, limit


def _flag_notes(flags: Flags) -> list[str]:
    notes = []
    if flags.outliers:
        notes.append(f"launches that stand apart: {', '.join(flags.outliers)}")
    if flags.is_uneven:
        notes.append("spreads differ between prompt lengths: the wider of two intervals is given")
    if flags.by_host:
        notes.append(f"the ratio is not the same on every host: {flags.by_host}")
    return notes


def _estimate_notes(tested: Estimate) -> list[str]:
    notes = []
    if tested.n == 1:
        notes.append("one launch each: no interval")
    if tested.sd < _NO_SPREAD:
        notes.append("no spread between launches: the clock may be too coarse to see it")
    return notes
