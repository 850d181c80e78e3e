"""What another model, block size, layout or operation would cost, from a study's fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model.fit import terms
from kvroad.errors import UserError, nearest
from kvroad.study.fields import Model
from kvroad.study.kv_layout import KvLayout, in_regions, kv_layout

__all__ = ["Prediction", "whatif"]


@dataclass(frozen=True)
class Prediction:
    """A predicted pull of one rank; nothing in it was measured.

    Parameters
    ----------
    pull_low_ms, pull_high_ms
        Interval of a launch's value: of the fit and of the model's own error.
    ttft_share
        Pull time as a share of the given time to first token; NaN where none is given.
    outside
        What lies outside the measured range, in words; empty where nothing does.
    """

    study: str
    series: str
    model: str
    prompt_tokens: int
    descriptors: int
    descriptor_bytes: int
    pull_bytes: int
    pull_ms: float
    pull_low_ms: float
    pull_high_ms: float
    ttft_share: float
    outside: tuple[str, ...]

    def __str__(self) -> str:
        """Return the prediction in a sentence, marked as one."""
        text = (
            f"prediction from the fit of study {self.study} ({self.series}), not measured: a pull"
            f" of {self.prompt_tokens:,} tokens of {self.model}, {self.descriptors:,} descriptors"
            f" of {self.descriptor_bytes:,} bytes, takes {self.pull_ms:.3g} ms"
            f" ({self.pull_low_ms:.3g} to {self.pull_high_ms:.3g})"
        )
        if not math.isnan(self.ttft_share):
            text += f", {100 * self.ttft_share:.2g} % of the time to first token"
        if self.outside:
            text += f"; EXTRAPOLATED: {'; '.join(self.outside)}"
        return text


def whatif(
    models: pd.DataFrame,
    *,
    study: str,
    road: str,
    operation: str,
    model: Model,
    prompt_tokens: int,
    tensor_parallel_size: int,
    block_tokens: int,
    regions: int | None = None,
    series: str | None = None,
    ttft_ms: float = math.nan,
) -> Prediction:
    """Return the predicted pull time of one rank.

    Parameters
    ----------
    models
        The table ``cost_model`` of the study named ``study``.
    road, operation
        As the table has them, such as ``tcp`` and ``read``.
    regions
        The same bytes in that many contiguous regions in place of blocks.
    series
        Which one, where the road and the operation were measured with several options.
    ttft_ms
        A time to first token to give the share of.

    Raises
    ------
    UserError
        For what the table lacks, what it has several of, or a fit that explains nothing.
    """
    row = _row(models[models["measure"] == "pull_ms"], study, road, operation, series)
    layout = kv_layout(
        model,
        tensor_parallel_size=tensor_parallel_size,
        block_tokens=block_tokens,
        prompt_tokens=prompt_tokens,
    )
    layout = layout if regions is None else in_regions(layout, regions)
    pull_ms, half = _predict(row, layout)
    return Prediction(
        study=study,
        series=row["series"],
        model=model.name,
        prompt_tokens=prompt_tokens,
        descriptors=layout.n_descriptors,
        descriptor_bytes=layout.descriptor_bytes,
        pull_bytes=layout.n_bytes,
        pull_ms=pull_ms,
        pull_low_ms=pull_ms * max(1 - half, 0.0),
        pull_high_ms=pull_ms * (1 + half),
        ttft_share=pull_ms / ttft_ms,
        outside=_outside(row, layout),
    )


def _predict(row: pd.Series[Any], layout: KvLayout) -> tuple[float, float]:
    """Return the pull time in ms and the half width of its interval as a share."""
    x = terms(layout.n_descriptors, layout.n_bytes)
    per_byte = 1e-3 / row["gb_per_s"] if row["gb_per_s"] > 0 else 0.0
    pull_us = float(x @ np.array([row["t0_us"], row["per_descriptor_us"], per_byte]))
    of_fit = math.sqrt(max(float(x @ _covariance(row) @ x), 0.0)) / pull_us
    return pull_us / 1000, row["t"] * math.hypot(of_fit, row["rms_error"])


def _row(
    pulls: pd.DataFrame, study: str, road: str, operation: str, series: str | None
) -> pd.Series[Any]:
    known = pulls["series"].tolist()
    found = pulls[(pulls["road"] == road) & (pulls["operation"] == operation)]
    if series is not None:
        found = found[found["series"] == series]
    if len(found) != 1:
        wanted = series or f"{road} {operation}"
        what = "several series" if len(found) else "no series"
        listed = found["series"].tolist() or known
        raise UserError(
            f"study {study} has {what} of {wanted!r}{nearest(wanted, known)} "
            f"(name one of: {', '.join(listed) or 'none'})"
        )
    row = found.iloc[0]
    series = row["series"]
    if row["note"]:
        raise UserError(f"study {study}: nothing is predicted from {series}: {row['note']}")
    if math.isnan(row["t"]):
        raise UserError(
            f"study {study}: nothing is predicted from {series}: {row['n_points']} points are no"
            " more than the parameters, so no error can be stated"
        )
    return row


def _covariance(row: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[row[f"cov_{min(i, j)}{max(i, j)}"] for j in range(3)] for i in range(3)])


def _outside(row: pd.Series[Any], layout: KvLayout) -> tuple[str, ...]:
    """Say what of a layout lies outside what the study has measured."""
    values = {
        "descriptors": layout.n_descriptors,
        "descriptor_bytes": layout.descriptor_bytes,
        "pull_bytes": layout.n_bytes,
    }
    return tuple(
        f"{name.replace('_', ' ')} {value:,} where {row[f'{name}_min']:,} to {row[f'{name}_max']:,}"
        " were measured"
        for name, value in values.items()
        if not row[f"{name}_min"] <= value <= row[f"{name}_max"]
    )
