"""Predictions side by side: every combination of the values params for, against the first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvroad.analysis.cost_model.predict import Prediction, whatif
from kvroad.errors import UserError, nearest
from kvroad.study.fields import Model

__all__ = ["OPERATIONS", "Scenario", "combinations", "predict", "series_for"]

# Word of the command line to the operation of the table, and what its series says besides.
OPERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "read": ("read", ()),
    "push": ("write", ()),
    "push_sgl": ("write", ("NIXL_UCX_SGL_ENABLE=y",)),
}


@dataclass(frozen=True)
class Scenario:
    """One row: what was asked, and the prediction or why there is none."""

    params: Mapping[str, Any]
    prediction: Prediction | None
    refusal: str = ""


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination, the last key changing fastest."""
    return [dict(zip(values, row)) for row in itertools.product(*values.values())]


def series_for(models: pd.DataFrame, study: str, operation: str, road: str | None) -> str:
    """Return the one series of a study's cost model that has an operation over a road.

    Series with settings of their own, such as another number of threads, are left to those who
    name them.

    Raises
    ------
    UserError
        For an unknown operation, and where none or several roads fit.
    """
    if operation not in OPERATIONS:
        raise UserError(
            f"operation: {operation!r} is unknown{nearest(operation, OPERATIONS)} "
            f"(allowed: {', '.join(OPERATIONS)})"
        )
    deed, extras = OPERATIONS[operation]
    pulls = models[models["measure"] == "pull_ms"]
    names = [str(name) for name in pulls["series"]]
    fitting = [
        (str(row["series"]), str(row["road"]))
        for row in pulls.to_dict("records")
        if row["operation"] == deed and tuple(str(row["series"]).split(", ")[1:]) == extras
    ]
    found = [(name, by) for name, by in fitting if road in (None, by)]
    if len(found) == 1:
        return found[0][0]
    if not found and road is not None and fitting:
        roads = sorted({by for _, by in fitting})
        raise UserError(
            f"study {study} has no {operation} over road {road!r}{nearest(road, roads)} "
            f"(it has: {', '.join(roads)})"
        )
    what = "several series" if found else "no series"
    listed = ", ".join(name for name, _ in found) or ", ".join(names) or "none"
    raise UserError(f"study {study} has {what} of operation {operation}; name one: {listed}")


def predict(
    params: Mapping[str, Any], models: pd.DataFrame, model: Model, ttft_ms: float | None
) -> Scenario:
    """Return the row of one combination of study, prompt, blocks, regions, road, operation."""
    study = str(params["study"])
    try:
        series = params["series"] or series_for(models, study, params["operation"], params["road"])
        row = models[(models["measure"] == "pull_ms") & (models["series"] == series)]
        if row.empty:
            known = sorted(set(models["series"].astype(str)))
            raise UserError(
                f"study {study} has no series {series!r}{nearest(series, known)} "
                f"(it has: {', '.join(known)})"
            )
        prediction = whatif(
            models,
            study=study,
            road=str(row["road"].iloc[0]),
            operation=str(row["operation"].iloc[0]),
            model=model,
            prompt_tokens=int(params["prompt_tokens"]),
            tensor_parallel_size=int(params["tp"]),
            block_tokens=int(params["block_tokens"]),
            regions=params["regions"],
            series=series,
            ttft_ms=math.nan if ttft_ms is None else ttft_ms,
        )
    except UserError as error:
        return Scenario(params, None, str(error))
    return Scenario(params, prediction)
