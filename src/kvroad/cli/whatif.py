"""``kvroad whatif``: predicted pull times from the fit of a study."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any

from kvroad.analysis.cost_model import Prediction
from kvroad.analysis.cost_model.scenarios import Scenario, combinations, predict
from kvroad.analysis.saved_study import SavedStudy, find_study, study_names
from kvroad.cli.parser import WHATIF_KEYS
from kvroad.cli.status import CONF, DONE, FAILED, REPORTS, RESULTS, NotUnderstood
from kvroad.cli.table import table_lines
from kvroad.errors import UserError
from kvroad.study.compose import read_model, read_values

__all__ = ["run"]

# The configuration's own names do as well.
_ALIASES = {
    "workload.block_tokens": "block_tokens",
    "engine.tensor_parallel_size": "tp",
    "engine.regions": "regions",
    "engine.operation": "operation",
}
_LABELS = {"prompt_tokens": "prompt", "block_tokens": "block", "operation": "operation"}
# Keys beside the study and what their values are, in the order in which they vary.
_TYPES = {
    "model": str,
    "prompt_tokens": int,
    "tp": int,
    "block_tokens": int,
    "regions": int,
    "road": str,
    "operation": str,
    "series": str,
}
_MAX_ROWS = 200


@dataclass(frozen=True)
class _Request:
    """What is to be predicted: the values of each key, of which every combination is a row."""

    values: dict[str, list[Any]]
    studies: dict[str, SavedStudy]
    ttft_ms: float | None

    @property
    def varied(self) -> list[str]:
        """The keys with several values."""
        return [key for key, values in self.values.items() if len(values) > 1]

    @property
    def fixed(self) -> str:
        """The keys with one value, with it."""
        fixed = {key: values[0] for key, values in self.values.items() if len(values) == 1}
        return ", ".join(f"{key}={value}" for key, value in fixed.items() if value is not None)


def run(arguments: argparse.Namespace) -> int:
    """Print a row per combination; 1 where nothing could be predicted."""
    try:
        given = read_values(arguments.overrides, (*WHATIF_KEYS, *_ALIASES))
        request = _request({_ALIASES.get(k, k): v for k, v in given.items()})
        models = {name: read_model(name, CONF) for name in request.values["model"]}
    except UserError as error:
        raise NotUnderstood(str(error)) from error
    tables = {name: study.table("cost_model") for name, study in request.studies.items()}
    scenarios = [
        predict(row, tables[row["study"]], models[row["model"]], request.ttft_ms)
        for row in combinations(request.values)
    ]
    if arguments.json:
        print(json.dumps([_plain(row) for row in scenarios], indent=1, ensure_ascii=False))
    else:
        _print(scenarios, request)
    return DONE if any(row.prediction for row in scenarios) else FAILED


def _request(given: dict[str, Any]) -> _Request:
    """Return what is asked for, with the first study's settings for what is not given."""
    if "study" not in given:
        names = ", ".join(study_names(REPORTS, RESULTS)) or "none"
        raise UserError(f"study is missing: whatif study=NAME (with a report here: {names})")
    studies = {str(word): find_study(str(word), REPORTS, RESULTS) for word in _list(given["study"])}
    settings = next(iter(studies.values())).settings
    defaults = {
        "model": settings["model"]["name"],
        "prompt_tokens": settings["prompt_tokens"],
        "tp": settings["engine"]["tensor_parallel_size"],
        "block_tokens": settings["workload"]["block_tokens"],
        "operation": "read",
    }
    values: dict[str, list[Any]] = {"study": list(studies)}
    for key, kind in _TYPES.items():
        words = _list(given.get(key, defaults.get(key)))
        values[key] = [_checked(key, word, kind, is_needed=key in defaults) for word in words]
    n_rows = math.prod(map(len, values.values()))
    if n_rows > _MAX_ROWS:
        raise UserError(f"{n_rows} rows asked for, {_MAX_ROWS} at most")
    ttft_ms = given.get("ttft_ms")
    if ttft_ms is not None and not (_is_a(ttft_ms, int | float) and ttft_ms > 0):
        raise UserError(f"ttft_ms: {ttft_ms!r} is not a time above 0, in milliseconds")
    return _Request(values, studies, None if ttft_ms is None else float(ttft_ms))


def _list(value: Any) -> list[Any]:
    if isinstance(value, list) and not value:
        raise UserError("an empty list leaves nothing to predict")
    return value if isinstance(value, list) else [value]


def _checked(key: str, value: Any, kind: type, *, is_needed: bool) -> Any:
    if value is None and not is_needed:
        return None
    if kind is str and not isinstance(value, str):
        raise UserError(f"{key}: {value!r} is not a name")
    if kind is int and not (_is_a(value, int) and value >= 1):
        raise UserError(f"{key}: {value!r} is not a whole number of 1 or more")
    return value


def _is_a(value: Any, kind: type | UnionType) -> bool:
    # True is an int to Python.
    return isinstance(value, kind) and not isinstance(value, bool)


def _print(scenarios: Sequence[Scenario], request: _Request) -> None:
    predictions = [row.prediction for row in scenarios if row.prediction]
    if not predictions:
        raise UserError(scenarios[0].refusal)
    if len(scenarios) == 1:
        print(f"PREDICTION: {str(predictions[0]).removeprefix('prediction ')}")
        return
    header = [_LABELS.get(key, key) for key in request.varied]
    header += ["descriptors", "of bytes", "MB", "PREDICTED ms", "interval", "against first"]
    header += ["of TTFT"] if request.ttft_ms is not None else []
    print(f"PREDICTION, nothing here was measured: one rank's pull, {request.fixed}")
    rows = [_row(scenario, predictions[0], request) for scenario in scenarios]
    for line in table_lines([*header, ""], rows):
        print(line)
    for series in dict.fromkeys((p.study, p.series) for p in predictions):
        print(f"from the fit of study {series[0]}: {series[1]}")
    for prediction in predictions:
        if prediction.outside:
            print(f"* EXTRAPOLATED: {'; '.join(prediction.outside)}")
    for refusal in dict.fromkeys(row.refusal for row in scenarios if row.refusal):
        print(f"no prediction: {refusal}")
    print(
        "The interval is of a launch's value, by the fit's own error; the ratio's limits are those "
        "of its two intervals at their ends."
    )


def _row(scenario: Scenario, first: Prediction, request: _Request) -> list[str]:
    values = {"regions": "blocks"} | {k: v for k, v in scenario.params.items() if v is not None}
    names = [str(values.get(key)) for key in request.varied]
    found, has_share = scenario.prediction, request.ttft_ms is not None
    if found is None:
        return [*names, "", "", "", "none", "", "", *([""] if has_share else []), ""]
    low, high = _limits(found, first)
    cells = [
        f"{found.descriptors:,}",
        f"{found.descriptor_bytes:,}",
        f"{found.pull_bytes / 1e6:,.1f}",
        f"{found.pull_ms:.3g}",
        f"{found.pull_low_ms:.3g} to {found.pull_high_ms:.3g}",
        "1x" if found is first else f"{found.pull_ms / first.pull_ms:.3g}x ({low} to {high})",
    ]
    share = [f"{100 * found.ttft_share:.2g} %"] if has_share else []
    return [*names, *cells, *share, "*" if found.outside else ""]


def _limits(found: Prediction, first: Prediction) -> tuple[str, str]:
    low = found.pull_low_ms / first.pull_high_ms
    if first.pull_low_ms <= 0:
        return f"{low:.2g}", "no limit"
    return f"{low:.2g}", f"{found.pull_high_ms / first.pull_low_ms:.2g}"


def _plain(scenario: Scenario) -> dict[str, Any]:
    """Return a row of ``--json``."""
    plain = {"asked": dict(scenario.params), "is_prediction": True}
    found = scenario.prediction
    if found is None:
        return {**plain, "refusal": scenario.refusal}
    share = None if math.isnan(found.ttft_share) else found.ttft_share
    return {**plain, **vars(found), "ttft_share": share}
