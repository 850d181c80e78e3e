"""What a reader of a contrast has to know besides: drift, and launches that stand apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvroad.analysis.stats.drift import fit_drift
from kvroad.analysis.stats.estimates import Estimate, Values
from kvroad.analysis.stats.hosts import hosts_of, level_hosts
from kvroad.analysis.stats.outliers import outlier_limit, robust_z
from kvroad.analysis.stats.pairs import Sample
from kvroad.analysis.tables import Metric

__all__ = ["Flags", "find_flags"]

# Deviations below a thousandth of a value are nothing to flag, however still the others are.
FLOOR_SHARE = 1e-3


@dataclass(frozen=True)
class Flags:
    """Drift on the tested scale (log ratio or difference), and outlier launches by name.

    ``is_uneven``: the spreads of the prompt lengths that were to be pooled are not equal.
    ``by_host``: the ratio on each host, where they are not the same; else empty.
    """

    drift: Estimate
    outliers: tuple[str, ...]
    is_uneven: bool = False
    by_host: str = ""


def find_flags(
    samples: Mapping[int, Sample], metric: Metric, alpha: float, *, is_log: bool
) -> dict[int, Flags]:
    """Return the flags of each prompt length.

    On the log scale all prompt lengths share one drift and one robust scale, as they share
    the variance of their log ratios; differences, whose scale grows with the prompt, are
    looked at one prompt length at a time.
    """
    if is_log:
        return _flags_of(samples, metric, alpha, is_log=True)
    found: dict[int, Flags] = {}
    for tokens, sample in samples.items():
        found |= _flags_of({tokens: sample}, metric, alpha, is_log=False)
    return found


def _flags_of(
    samples: Mapping[int, Sample], metric: Metric, alpha: float, *, is_log: bool
) -> dict[int, Flags]:
    sides = [(t, side) for t, s in samples.items() for side in (s.arm, s.baseline)]
    scale = np.log if is_log else np.asarray
    values = [scale(side[metric.name].to_numpy(dtype=float)) for _, side in sides]
    orders = [side["executed_order"].to_numpy(dtype=float, na_value=np.nan) for _, side in sides]
    drift = fit_drift(_per_host(sides, orders, values), alpha)
    return {
        tokens: Flags(drift, names)
        for tokens, names in _outliers(samples, metric, values, alpha, is_log=is_log).items()
    }


def _per_host(
    sides: list[tuple[int, pd.DataFrame]], orders: list[Values], values: list[Values]
) -> list[tuple[Values, Values]]:
    """Return order and value of each arm, prompt length and host: each has a level of its own."""
    groups = []
    for (_, side), order, value in zip(sides, orders, values, strict=True):
        hosts = hosts_of(side)
        for host in dict.fromkeys(hosts):
            is_here = [name == host for name in hosts]
            groups.append((order[is_here], value[is_here]))
    return groups


def _outliers(
    samples: Mapping[int, Sample],
    metric: Metric,
    values: list[Values],
    alpha: float,
    *,
    is_log: bool,
) -> dict[int, tuple[str, ...]]:
    groups: list[Values] = []
    owners: list[tuple[int, tuple[int, ...]]] = []
    for place, (tokens, sample) in enumerate(samples.items()):
        arm, baseline = 2 * place, 2 * place + 1
        if sample.is_paired:
            groups.append(values[arm] - values[baseline])
            owners.append((tokens, (arm, baseline)))
        else:
            groups += [
                level_hosts(values[place], hosts_of(side))
                for place, side in ((arm, sample.arm), (baseline, sample.baseline))
            ]
            owners += [(tokens, (arm,)), (tokens, (baseline,))]
    pulls = [s.baseline[metric.pull].mean() for s in samples.values() if len(s.baseline)]
    floor = FLOOR_SHARE * (1.0 if is_log else float(np.mean(pulls)) if pulls else 0.0)
    limit = outlier_limit(tuple(len(g) for g in groups), alpha)
    found: dict[int, tuple[str, ...]] = dict.fromkeys(samples, ())
    for (tokens, places), z in zip(owners, robust_z(groups, floor), strict=True):
        for i in np.flatnonzero(np.abs(z) > limit):
            away = {k: abs(values[k][i] - np.median(values[k])) for k in places}
            side = max(away, key=lambda k: away[k])
            frame = samples[tokens].arm if side % 2 == 0 else samples[tokens].baseline
            block = frame.index[int(i)]
            name = f"{frame['arm'].iloc[int(i)]} block {block} ({z[i]:+.1f} robust sd)"
            found[tokens] = (*found[tokens], name)
    return found
