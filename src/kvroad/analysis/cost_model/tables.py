"""Series to the cost model's tables: parameters, points, held-out sizes, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model.fit import PARAMETERS, Launches, Values, fit_cost, terms
from kvroad.analysis.cost_model.series import FITS, Series

__all__ = [
    "PointRow",
    "curves_frame",
    "held_out_frame",
    "models_frame",
    "points_frame",
]

_CURVE_POINTS = 60

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


def models_frame(all_series: list[Series], alpha: float) -> pd.DataFrame:
    """Return a row per series and measure: ranges, parameters, intervals, goodness of fit.

    Parameters that cannot be told apart, and all of a model that does not fit, are empty;
    ``note`` says why. The covariance of the free parameters is in ``cov_<i><j>``, for
    predictions.
    """
    rows = [_model_row(series, alpha) for series in all_series]
    covariances = [f"cov_{i}{j}" for i in range(3) for j in range(i, 3)]
    return pd.DataFrame(rows, columns=[*_MODEL_COLUMNS, *covariances, "t"])


def _model_row(series: Series, alpha: float) -> dict[str, Any]:
    fit, launches = series.fit, series.launches
    ranges = {"descriptors": launches.descriptors, "descriptor_bytes": series.sizes}
    row: dict[str, Any] = {
        "series": series.name,
        "measure": series.measure,
        "road": series.road,
        "operation": series.operation,
        "arms": ", ".join(series.arms),
        "n_points": fit.n_points,
        "n_sizes": len(np.unique(series.sizes)),
        "n_launches": fit.n_launches,
        "df": fit.df,
        "nominal_gb_per_s": series.nominal_gb_per_s,
        "rms_error": fit.rms_error,
        "max_error": fit.max_error,
        "noise": fit.noise,
        "confounded": ", ".join(fit.confounded),
        "is_identified": not fit.confounded,
        "is_fitting": series.is_fitting,
        "note": _note(series),
        "t": max(fit.t(x, alpha) for x in np.eye(3)),
    }
    for name, values in {**ranges, "pull_bytes": launches.n_bytes}.items():
        row |= {f"{name}_min": int(values.min()), f"{name}_max": math.ceil(values.max())}
    if not series.is_fitting:
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


def _note(series: Series) -> str:
    texts = [_fit_note(series)]
    if series.n_merged:
        texts.append(
            f"{series.n_merged} of {series.fit.n_launches} launches are fitted with the descriptors"
            " that the engine counted, which differ from the layout's by more than 1 % (NIXL merges"
            " neighbours); sizes of descriptors are means"
        )
    return "; ".join(filter(None, texts))


def _fit_note(series: Series) -> str:
    fit = series.fit
    if not series.is_fitting:
        return (
            f"does not fit: its points are off by {100 * fit.rms_error:.0f} % (root mean square),"
            f" more than {100 * FITS:.0f} %, where launches of a point vary by"
            f" {100 * fit.noise:.0f} %; nothing is explained by it"
        )
    if not fit.confounded:
        return ""
    what = " and ".join(name.replace("_", " ") for name in fit.confounded)
    why = "these data vary too little"
    if len(np.unique(series.sizes)) == 1:
        why = f"every descriptor is of {int(series.sizes[0]):,} bytes"
    elif len(np.unique(series.launches.n_bytes)) == 1:
        why = f"every pull is of {int(series.launches.n_bytes[0]):,} bytes"
    return f"{what} cannot be told apart: {why}"


def points_frame(all_series: list[Series], alpha: float) -> pd.DataFrame:
    """Return a row per point: measured against fitted, operations' share, effective rate."""
    rows = [row for series in all_series for row in _point_rows(series, alpha)]
    return pd.DataFrame(rows, columns=list(PointRow.__annotations__))


def _point_rows(series: Series, alpha: float) -> Iterator[PointRow]:
    for descriptors, n_bytes, times in _points(series.launches):
        x = terms(descriptors, n_bytes)
        measured = float(np.exp(np.log(times).mean()))
        predicted = float(x @ series.fit.values)
        share, low, high = series.share(descriptors, n_bytes, alpha)
        effective = n_bytes / measured / 1000 if series.measure == "pull_ms" else math.nan
        yield {
            "series": series.name,
            "measure": series.measure,
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
            "nominal_gb_per_s": series.nominal_gb_per_s,
            "effective_share": effective / series.nominal_gb_per_s,
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


def held_out_frame(all_series: list[Series], alpha: float) -> pd.DataFrame:
    """Return each descriptor size as a fit without it predicts it, against what was measured.

    ``stated_error`` is the half width, as a share, in which the measured mean is to lie:
    t · sqrt(variance of the prediction + (error of the model)²). Sizes at either end are
    extrapolations and marked so. Sizes whose prediction the other data do not determine
    are left out.
    """
    rows = [
        row for series in all_series if series.is_fitting for row in _held_out_rows(series, alpha)
    ]
    return pd.DataFrame(rows, columns=list(HeldOutRow.__annotations__))


def _held_out_rows(series: Series, alpha: float) -> Iterator[HeldOutRow]:
    sizes = series.sizes
    for size in np.unique(sizes):
        rest = series.launches.only(sizes != size)
        if len(np.unique(sizes)) < 2 or len(np.unique(rest.points)) < 2:
            continue
        fit = fit_cost(rest)
        others = sizes[sizes != size]
        for descriptors, n_bytes, times in _points(series.launches.only(sizes == size)):
            x = terms(descriptors, n_bytes)
            if not fit.is_told(x) or fit.df < 1:
                continue
            predicted, measured = float(x @ fit.values), float(np.exp(np.log(times).mean()))
            stated = fit.stated_error(x, alpha)
            error = predicted / measured - 1
            yield {
                "series": series.name,
                "measure": series.measure,
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


def curves_frame(all_series: list[Series]) -> pd.DataFrame:
    """Return the fitted pull rate over descriptor sizes, inside the measured range only."""
    rows: list[CurveRow] = []
    for series in all_series:
        if series.measure != "pull_ms" or not series.is_fitting or len(np.unique(series.sizes)) < 2:
            continue
        for n_bytes in np.unique(series.launches.n_bytes):
            here = series.sizes[series.launches.n_bytes == n_bytes]
            for size in np.geomspace(here.min(), here.max(), _CURVE_POINTS):
                predicted = float(terms(n_bytes / size, n_bytes) @ series.fit.values)
                rows.append(
                    {
                        "series": series.name,
                        "pull_bytes": int(n_bytes),
                        "descriptor_bytes": float(size),
                        "predicted_ms": predicted / 1000,
                        "gb_per_s": n_bytes / predicted / 1000,
                    }
                )
    return pd.DataFrame(rows, columns=list(CurveRow.__annotations__))
