"""Launch values to series: the arms that one cost model is fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model.fit import Fit, Launches, Values, fit_cost, terms
from kvroad.analysis.tables import DesignFile

__all__ = ["FITS", "MEASURES", "Series", "as_moved", "series_of"]

# What is fitted: the pull, and the call that issues it, one at a time.
MEASURES = ("pull_ms", "post_ms")
# A model whose points are off by more than this, root mean square, explains nothing.
FITS = 0.10
# Descriptors that are off by less are those of the layout.
_MERGED = 0.01


@dataclass(frozen=True)
class Series:
    """Launches of the arms that one model is fitted to, and the fit.

    ``n_merged`` of the launches moved other descriptors than the layout has.
    """

    name: str
    measure: str
    road: str
    operation: str
    arms: tuple[str, ...]
    nominal_gb_per_s: float
    launches: Launches
    fit: Fit
    n_merged: int = 0

    @property
    def is_fitting(self) -> bool:
        """Whether the model describes the points."""
        return self.fit.rms_error <= FITS

    @property
    def sizes(self) -> Values:
        """Bytes of a descriptor of each launch."""
        return np.asarray(self.launches.n_bytes / self.launches.descriptors)

    def share(self, descriptors: float, n_bytes: float, alpha: float) -> tuple[float, float, float]:
        """Return the operations' share of a time and its interval (delta method); NaN if untold."""
        x, operations = terms(descriptors, n_bytes), terms(0, 0)
        operations[:] = 0.0, descriptors, 0.0
        if not (self.is_fitting and self.fit.is_told(x) and self.fit.is_told(operations)):
            return math.nan, math.nan, math.nan
        total = float(x @ self.fit.values)
        share = float(operations @ self.fit.values) / total
        half = self.fit.half_width((operations - share * x) / total, alpha)
        return share, max(share - half, 0.0), min(share + half, 1.0)


def as_moved(cells: pd.DataFrame) -> pd.DataFrame:
    """Return proven cells with the descriptors and bytes that the cost model is fitted with.

    Those of the layout, but where an engine counted others by more than 1 % (NIXL merges
    neighbouring blocks): there the mean over the launches of the arm and prompt length, to a
    tenth, with ``is_as_moved`` set. A mean is enough, since the model is linear in the
    descriptors, so that their mean gives the mean time; and one number for all launches of an
    arm and prompt length keeps them one point, whose error they share.
    """
    fitted = cells.assign(is_as_moved=False)
    for planned, moved in (("descriptors", "descriptors_moved"), ("pull_bytes", "bytes_moved")):
        if moved not in cells:
            continue
        means = cells.groupby(["arm", "prompt_tokens"])[moved].transform("mean").round(1)
        is_off = (means / cells[planned].astype("float64") - 1).abs() > _MERGED
        fitted[planned] = cells[planned].astype("float64").mask(is_off, means)
        fitted["is_as_moved"] |= is_off
    return fitted


def series_of(cells: pd.DataFrame, design: DesignFile, measure: str) -> list[Series]:
    """Return the series of a study with their fits, in the order of its arms.

    A series is what has one road, operation and set of options; its arms differ in block
    size or regions. Launches without a proven road, or whose time is zero, are left out.
    Pulls are fitted as they were moved, see `as_moved`.
    """
    proven = cells[(cells["outcome"] == "proven") & (cells[measure] > 0)]
    proven = as_moved(proven[(proven["descriptors"] > 0) & (proven["pull_bytes"] > 0)])
    names: dict[str, list[str]] = {}
    for arm in design.arms:
        names.setdefault(design.facts_of(arm).series, []).append(arm)
    found = []
    for name, arms in names.items():
        of_arms = proven[proven["arm"].isin(arms)]
        if of_arms.empty:
            continue
        numbers = [of_arms[c].to_numpy(dtype=float) for c in ("descriptors", "pull_bytes", measure)]
        launches = Launches(numbers[0], numbers[1], 1000 * numbers[2])
        facts = design.facts_of(arms[0])
        found.append(
            Series(
                name=name,
                measure=measure,
                road=", ".join(sorted(of_arms["road_seen"].dropna().unique())),
                operation=facts.operation,
                arms=tuple(arm for arm in arms if arm in set(of_arms["arm"])),
                nominal_gb_per_s=facts.nominal_gb_per_s or math.nan,
                launches=launches,
                fit=fit_cost(launches),
                n_merged=int(of_arms["is_as_moved"].sum()),
            )
        )
    return found
