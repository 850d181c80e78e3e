"""Hosts as a blocking factor: arms are compared within a host, never between two."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from kvroad.stats.estimates import Estimate, Values, estimate

__all__ = ["hosts_of", "is_host_dependent", "level_hosts", "listed_hosts", "within_hosts"]


def hosts_of(frame: pd.DataFrame) -> pd.Series[str]:
    """Return the host of each row; tables without that column are of one host."""
    if "host" in frame:
        return frame["host"].fillna("")
    return pd.Series("", index=frame.index, dtype="str")


def listed_hosts(frame: pd.DataFrame) -> str:
    """Return each host with its number of rows, as text."""
    counts = hosts_of(frame).value_counts(sort=False)
    return ", ".join(f"{host} {counts[host]}" for host in sorted(counts.index))


def within_hosts(
    arm: Values, baseline: Values, hosts: tuple[pd.Series[str], pd.Series[str]], alpha: float
) -> Estimate:
    """Return the mean difference of two arms within hosts, where launches are no pairs.

    Least squares with a level for each host and one difference for all (randomised blocks
    with unequal numbers: Montgomery, Design and Analysis of Experiments, section 4.1).

    Parameters
    ----------
    hosts
        Of the values of the arm and of the baseline; each host has both.
    """
    y = np.concatenate([arm, baseline])
    is_arm = np.concatenate([np.ones(len(arm)), np.zeros(len(baseline))])
    names = pd.concat(hosts, ignore_index=True)
    y, x = (np.asarray(v - pd.Series(v).groupby(names).transform("mean")) for v in (y, is_arm))
    squares = float((x**2).sum())
    mean = float((x * y).sum()) / squares
    df, n = len(y) - names.nunique() - 1, min(len(arm), len(baseline))
    if df < 1:
        return Estimate(n, mean)
    sd = math.sqrt(float(((y - mean * x) ** 2).sum()) / df)
    return estimate(n, mean, sd / math.sqrt(squares), df, alpha, sd)


def is_host_dependent(pairs: Mapping[int, tuple[Values, pd.Series[str]]], alpha: float) -> bool:
    """Return whether the difference of the arms is another one on some host.

    F test of one-way layouts, hosts as groups, sums of squares added up over prompt lengths.

    Parameters
    ----------
    pairs
        Differences within pairs and the host of each, by prompt length.
    """
    between = within = 0.0
    df_between = df_within = 0
    for values, hosts in pairs.values():
        y, names = pd.Series(values), hosts.reset_index(drop=True)
        own = y.groupby(names).transform("mean")
        n_hosts = names.nunique()
        between += float(((own - y.mean()) ** 2).sum())
        within += float(((y - own) ** 2).sum())
        df_between += max(n_hosts - 1, 0)
        df_within += len(y) - n_hosts
    if not df_between or df_within < 1:
        return False
    if within == 0:
        return between > 0
    return bool(fdtrc(df_between, df_within, between / df_between / (within / df_within)) < alpha)


def level_hosts(values: Values, hosts: pd.Series[str]) -> Values:
    """Return the values with the median of each host moved to the median of all."""
    if hosts.nunique() < 2:
        return values
    y = pd.Series(values)
    own = y.groupby(hosts.reset_index(drop=True)).transform("median")
    return np.asarray(y - own + y.median(), dtype=float)
