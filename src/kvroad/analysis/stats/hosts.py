"""Hosts as a blocking factor: arms are compared within a host, never between two."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from kvroad.analysis.stats.estimates import Estimate, Values, estimate

__all__ = ["hosts_of", "is_host_dependent", "level_hosts", "listed_hosts", "within_hosts"]


def hosts_of(frame: pd.DataFrame) -> list[str]:
    """Return the host of each row; tables without that column are of one host."""
    if "host" not in frame:
        return [""] * len(frame)
    return [host if isinstance(host, str) else "" for host in frame["host"].tolist()]


def listed_hosts(frame: pd.DataFrame) -> str:
    """Return each host with its number of rows, as text."""
    counts = Counter(hosts_of(frame))
    return ", ".join(f"{host} {counts[host]}" for host in sorted(counts))


def within_hosts(
    arm: Values, baseline: Values, hosts: tuple[list[str], list[str]], alpha: float
) -> Estimate:
    """Return the mean difference of two arms within hosts, where launches are no pairs.

    Least squares with a level for each host and one difference for all (randomised blocks
    with unequal numbers: Montgomery, Design and Analysis of Experiments, section 4.1).

    Parameters
    ----------
    hosts
        Of the values of the arm and of the baseline; each host has both.
    """
    names = [*hosts[0], *hosts[1]]
    is_arm = np.concatenate([np.ones(len(arm)), np.zeros(len(baseline))])
    y = _centred(np.concatenate([arm, baseline]), names)
    x = _centred(is_arm, names)
    squares = float((x**2).sum())
    mean = float((x * y).sum()) / squares
    df, n = len(y) - len(set(names)) - 1, min(len(arm), len(baseline))
    if df < 1:
        return Estimate(n, mean)
    sd = math.sqrt(float(((y - mean * x) ** 2).sum()) / df)
    return estimate(n, mean, sd / math.sqrt(squares), df, alpha, sd)


def _centred(values: Values, hosts: list[str]) -> Values:
    """Return values less the mean of their host."""
    y = pd.Series(values)
    return np.asarray(y - y.groupby(hosts).transform("mean"), dtype=float)


def is_host_dependent(pairs: Mapping[int, tuple[Values, list[str]]], alpha: float) -> bool:
    """Return whether the difference of the arms is another one on some host.

    F test of one-way layouts, hosts as groups, sums of squares added up over prompt lengths.

    Parameters
    ----------
    pairs
        Differences within pairs and the host of each, by prompt length.
    """
    if all(len(set(hosts)) < 2 for _, hosts in pairs.values()):
        return False
    between = within = 0.0
    df_between = df_within = 0
    for values, hosts in pairs.values():
        n_hosts, apart = len(set(hosts)), _centred(values, hosts)
        within += float((apart**2).sum())
        between += float(((values - apart - values.mean()) ** 2).sum())
        df_between += max(n_hosts - 1, 0)
        df_within += len(values) - n_hosts
    if not df_between or df_within < 1:
        return False
    if within == 0:
        return between > 0
    return bool(fdtrc(df_between, df_within, between / df_between / (within / df_within)) < alpha)


def level_hosts(values: Values, hosts: list[str]) -> Values:
    """Return the values with the median of each host moved to the median of all."""
    if len(set(hosts)) < 2:
        return values
    y = pd.Series(values)
    return np.asarray(y - y.groupby(hosts).transform("median") + y.median(), dtype=float)
