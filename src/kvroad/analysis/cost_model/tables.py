"""Launch values to the cost model's tables: parameters, points, held-out sizes, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model.fit import PARAMETERS, Fit, Launches, Values, fit_cost, terms
from kvroad.analysis.tables import DesignFile

__all__ = [
    "FITS",
    "MEASURES",
    "PointRow",
    "Series",
    "as_moved",
    "curves_frame",
    "held_out_frame",
    "models_frame",
    "points_frame",
    "series_of",
]

# What is fitted: the pull, and the call that issues it, one at a time.
MEASURES = ("pull_ms", "post_ms")
# A model whose points are off by more than this, root mean square, explains nothing.
FITS = 0.10
_CURVE_POINTS = 60
# Descriptors that are off by less are those of the layout.
_MERGED = 0.01

_MODEL_COLUMNS = [
    "series",
    "measure",
    "road",
    "operation",
    "arms",
    "n_points",
    "n_sizes",
    "n_launches",
    "df",
    "descriptors_min",
    "descriptors_max",
    "descriptor_bytes_min",
    "descriptor_bytes_max",
    "pull_bytes_min",
    "pull_bytes_max",
    "t0_us",
    "t0_low_us",
    "t0_high_us",
    "per_descriptor_us",
    "per_descriptor_low_us",
    "per_descriptor_high_us",
    "gb_per_s",
    "gb_per_s_low",
    "gb_per_s_high",
    "nominal_gb_per_s",
    "rms_error",
    "max_error",
    "noise",
    "confounded",
    "is_identified",
    "is_fitting",
    "note",
]


class PointRow(TypedDict):
    """A point: measured against fitted, the operations' share of it, its rate."""

    series: str
    measure: str
    descriptors: float
    descriptor_bytes: int
    pull_bytes: int
    n_launches: int
    measured_ms: float
    predicted_ms: float
    error: float
    operations_share: float
    operations_share_low: float
    operations_share_high: float
    effective_gb_per_s: float
    nominal_gb_per_s: float
    effective_share: float


class HeldOutRow(TypedDict):
    """A point as a fit without its descriptor size predicts it."""

    series: str
    measure: str
    held_out_bytes: int
    descriptors: float
    pull_bytes: int
    measured_ms: float
    predicted_ms: float
    error: float
    stated_error: float
    is_within: bool
    is_extrapolated: bool


class CurveRow(TypedDict):
    """A place on the fitted curve of a series and size of pull."""

    series: str
    pull_bytes: int
    descriptor_bytes: float
    predicted_ms: float
    gb_per_s: float


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
        x, one = terms(descriptors, n_bytes), terms(0, 0)
        one[:] = 0.0, descriptors, 0.0
        if not (self.is_fitting and self.fit.is_told(x) and self.fit.is_told(one)):
            return math.nan, math.nan, math.nan
        total = float(x @ self.fit.values)
        share = float(one @ self.fit.values) / total
        half = self.fit.half_width((one - share * x) / total, alpha)
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
        own = proven[proven["arm"].isin(arms)]
        if own.empty:
            continue
        numbers = [own[c].to_numpy(dtype=float) for c in ("descriptors", "pull_bytes", measure)]
        launches = Launches(numbers[0], numbers[1], 1000 * numbers[2])
        facts = design.facts_of(arms[0])
        found.append(
            Series(
                name=name,
                measure=measure,
                road=", ".join(sorted(own["road_seen"].dropna().unique())),
                operation=facts.operation,
                arms=tuple(arm for arm in arms if arm in set(own["arm"])),
                nominal_gb_per_s=facts.nominal_gb_per_s or math.nan,
                launches=launches,
                fit=fit_cost(launches),
                n_merged=int(own["is_as_moved"].sum()),
            )
        )
    return found


def models_frame(series: list[Series], alpha: float) -> pd.DataFrame:
    """Return a row per series and measure: ranges, parameters, intervals, goodness of fit.

    Parameters that cannot be told apart, and all of a model that does not fit, are empty;
    ``note`` says why. The covariance of the free parameters is in ``cov_<i><j>``, for
    predictions.
    """
    rows = [_model_row(one, alpha) for one in series]
    covariances = [f"cov_{i}{j}" for i in range(3) for j in range(i, 3)]
    return pd.DataFrame(rows, columns=[*_MODEL_COLUMNS, *covariances, "t"])


def _model_row(one: Series, alpha: float) -> dict[str, Any]:
    fit, launches = one.fit, one.launches
    ranges = {"descriptors": launches.descriptors, "descriptor_bytes": one.sizes}
    row: dict[str, Any] = {
        "series": one.name,
        "measure": one.measure,
        "road": one.road,
        "operation": one.operation,
        "arms": ", ".join(one.arms),
        "n_points": fit.n_points,
        "n_sizes": len(np.unique(one.sizes)),
        "n_launches": fit.n_launches,
        "df": fit.df,
        "nominal_gb_per_s": one.nominal_gb_per_s,
        "rms_error": fit.rms_error,
        "max_error": fit.max_error,
        "noise": fit.noise,
        "confounded": ", ".join(fit.confounded),
        "is_identified": not fit.confounded,
        "is_fitting": one.is_fitting,
        "note": _note(one),
        "t": max(fit.t(x, alpha) for x in np.eye(3)),
    }
    for name, values in {**ranges, "pull_bytes": launches.n_bytes}.items():
        row |= {f"{name}_min": int(values.min()), f"{name}_max": math.ceil(values.max())}
    if not one.is_fitting:
        return row
    row |= {f"cov_{i}{j}": fit.covariance[i, j] for i in range(3) for j in range(i, 3)}
    for i, (name, unit) in enumerate(zip(PARAMETERS, np.eye(3), strict=True)):
        if name in fit.confounded:
            continue
        value, (low, high) = fit.values[i], fit.interval(unit, alpha)
        if name == "per_byte":
            row |= {"gb_per_s": _rate(value)}
            row |= {"gb_per_s_low": _rate(high), "gb_per_s_high": _rate(low)}
        else:
            row |= {f"{name}_us": value, f"{name}_low_us": low, f"{name}_high_us": high}
    return row


def _rate(us_per_byte: float) -> float:
    """Return GB/s; NaN where a byte costs nothing."""
    return 1e-3 / us_per_byte if us_per_byte > 0 else math.nan


def _note(one: Series) -> str:
    texts = [_fit_note(one)]
    if one.n_merged:
        texts.append(
            f"{one.n_merged} of {one.fit.n_launches} launches are fitted with the descriptors that"
            " the engine counted, which differ from the layout's by more than 1 % (NIXL merges"
            " neighbours); sizes of descriptors are means"
        )
    return "; ".join(filter(None, texts))


def _fit_note(one: Series) -> str:
    fit = one.fit
    if not one.is_fitting:
        return (
            f"does not fit: its points are off by {100 * fit.rms_error:.0f} % (root mean square),"
            f" more than {100 * FITS:.0f} %, where launches of a point vary by"
            f" {100 * fit.noise:.0f} %; nothing is explained by it"
        )
    if not fit.confounded:
        return ""
    what = " and ".join(name.replace("_", " ") for name in fit.confounded)
    why = "these data vary too little"
    if len(np.unique(one.sizes)) == 1:
        why = f"every descriptor is of {int(one.sizes[0]):,} bytes"
    elif len(np.unique(one.launches.n_bytes)) == 1:
        why = f"every pull is of {int(one.launches.n_bytes[0]):,} bytes"
    return f"{what} cannot be told apart: {why}"


def points_frame(series: list[Series], alpha: float) -> pd.DataFrame:
    """Return a row per point: measured against fitted, operations' share, effective rate."""
    rows = [row for one in series for row in _point_rows(one, alpha)]
    return pd.DataFrame(rows, columns=list(PointRow.__annotations__))


def _point_rows(one: Series, alpha: float) -> Iterator[PointRow]:
    for descriptors, n_bytes, times in _points(one.launches):
        x = terms(descriptors, n_bytes)
        measured = float(np.exp(np.log(times).mean()))
        predicted = float(x @ one.fit.values)
        share, low, high = one.share(descriptors, n_bytes, alpha)
        effective = n_bytes / measured / 1000 if one.measure == "pull_ms" else math.nan
        yield {
            "series": one.name,
            "measure": one.measure,
            "descriptors": _whole(descriptors),
            "descriptor_bytes": int(n_bytes / descriptors),
            "pull_bytes": int(n_bytes),
            "n_launches": len(times),
            "measured_ms": measured / 1000,
            "predicted_ms": predicted / 1000,
            "error": predicted / measured - 1,
            "operations_share": share,
            "operations_share_low": low,
            "operations_share_high": high,
            "effective_gb_per_s": effective,
            "nominal_gb_per_s": one.nominal_gb_per_s,
            "effective_share": effective / one.nominal_gb_per_s,
        }


def _whole(descriptors: float) -> float:
    """Return descriptors as an integer, but for the mean of pulls that NIXL merged."""
    return int(descriptors) if descriptors.is_integer() else descriptors


def _points(launches: Launches) -> Iterator[tuple[float, float, Values]]:
    """Yield descriptors, bytes and times in microseconds of each point."""
    points = launches.points
    for i in range(int(points.max()) + 1):
        here = points == i
        descriptors, n_bytes = launches.descriptors[here][0], launches.n_bytes[here][0]
        yield float(descriptors), float(n_bytes), launches.times_us[here]


def held_out_frame(series: list[Series], alpha: float) -> pd.DataFrame:
    """Return each descriptor size as a fit without it predicts it, against what was measured.

    ``stated_error`` is the half width, as a share, in which the measured mean is to lie:
    t · sqrt(variance of the prediction + (error of the model)²). Sizes at either end are
    extrapolations and marked so. Sizes whose prediction the other data do not determine
    are left out.
    """
    rows = [row for one in series if one.is_fitting for row in _held_out_rows(one, alpha)]
    return pd.DataFrame(rows, columns=list(HeldOutRow.__annotations__))


def _held_out_rows(one: Series, alpha: float) -> Iterator[HeldOutRow]:
    sizes = one.sizes
    for size in np.unique(sizes):
        rest = one.launches.only(sizes != size)
        if len(np.unique(sizes)) < 2 or len(np.unique(rest.points)) < 2:
            continue
        fit = fit_cost(rest)
        others = sizes[sizes != size]
        for descriptors, n_bytes, times in _points(one.launches.only(sizes == size)):
            x = terms(descriptors, n_bytes)
            if not fit.is_told(x) or fit.df < 1:
                continue
            predicted, measured = float(x @ fit.values), float(np.exp(np.log(times).mean()))
            stated = fit.stated_error(x, alpha)
            error = predicted / measured - 1
            yield {
                "series": one.name,
                "measure": one.measure,
                "held_out_bytes": int(size),
                "descriptors": _whole(descriptors),
                "pull_bytes": int(n_bytes),
                "measured_ms": measured / 1000,
                "predicted_ms": predicted / 1000,
                "error": error,
                "stated_error": stated,
                "is_within": abs(error) <= stated,
                "is_extrapolated": not others.min() <= size <= others.max(),
            }


def curves_frame(series: list[Series]) -> pd.DataFrame:
    """Return the fitted pull rate over descriptor sizes, inside the measured range only."""
    rows: list[CurveRow] = []
    for one in series:
        if one.measure != "pull_ms" or not one.is_fitting or len(np.unique(one.sizes)) < 2:
            continue
        for n_bytes in np.unique(one.launches.n_bytes):
            here = one.sizes[one.launches.n_bytes == n_bytes]
            for size in np.geomspace(here.min(), here.max(), _CURVE_POINTS):
                predicted = float(terms(n_bytes / size, n_bytes) @ one.fit.values)
                rows.append(
                    {
                        "series": one.name,
                        "pull_bytes": int(n_bytes),
                        "descriptor_bytes": float(size),
                        "predicted_ms": predicted / 1000,
                        "gb_per_s": n_bytes / predicted / 1000,
                    }
                )
    return pd.DataFrame(rows, columns=list(CurveRow.__annotations__))
