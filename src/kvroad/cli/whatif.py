"""``kvroad whatif``: predicted pull times from the fit of a study."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
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
_MAX_ROWS = 200


def run(arguments: argparse.Namespace) -> int:
    """Print a row per combination; 1 where nothing could be predicted."""
    try:
        given = read_values(arguments.overrides, (*WHATIF_KEYS, *_ALIASES))
        asked, studies, ttft_ms = _asked({_ALIASES.get(k, k): v for k, v in given.items()})
        models = {name: read_model(name, CONF) for name in _texts(asked["model"])}
    except UserError as error:
        raise NotUnderstood(str(error)) from error
    tables = {name: study.table("cost_model") for name, study in studies.items()}
    scenarios = [
        predict(row, tables[row["study"]], models[row["model"]], ttft_ms)
        for row in combinations(asked)
    ]
    if arguments.json:
        print(json.dumps([_plain(one) for one in scenarios], indent=1, ensure_ascii=False))
    else:
        _print(scenarios, asked, ttft_ms)
    return DONE if any(one.prediction for one in scenarios) else FAILED


def _asked(
    given: Mapping[str, Any],
) -> tuple[dict[str, list[Any]], dict[str, SavedStudy], float | None]:
    """Return each key with its values, the first study's settings in place of what is not given."""
    if "study" not in given:
        names = ", ".join(study_names(REPORTS, RESULTS)) or "none"
        raise UserError(f"study is missing: whatif study=NAME (with a report here: {names})")
    studies = {word: find_study(word, REPORTS, RESULTS) for word in _texts(_list(given["study"]))}
    settings = next(iter(studies.values())).settings
    defaults: dict[str, Any] = {
        "model": settings["model"]["name"],
        "prompt_tokens": settings["prompt_tokens"],
        "tp": settings["engine"]["tensor_parallel_size"],
        "block_tokens": settings["workload"]["block_tokens"],
        "regions": None,
        "road": None,
        "operation": "read",
        "series": None,
    }
    asked: dict[str, list[Any]] = {"study": list(studies)}
    for key, value in defaults.items():
        asked[key] = [_CHECKS[key](key, one) for one in _list(given.get(key, value))]
    if math.prod(map(len, asked.values())) > _MAX_ROWS:
        raise UserError(
            f"{math.prod(map(len, asked.values()))} rows asked for, {_MAX_ROWS} at most"
        )
    ttft_ms = given.get("ttft_ms")
    if ttft_ms is not None and not (_is_number(ttft_ms) and ttft_ms > 0):
        raise UserError(f"ttft_ms: {ttft_ms!r} is not a time above 0, in milliseconds")
    return asked, studies, None if ttft_ms is None else float(ttft_ms)


def _list(value: Any) -> list[Any]:
    if isinstance(value, list) and not value:
        raise UserError("an empty list leaves nothing to predict")
    return value if isinstance(value, list) else [value]


def _texts(values: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{key}: {value!r} is not a whole number of 1 or more")
    return value


def _count_or_none(key: str, value: Any) -> int | None:
    return None if value is None else _count(key, value)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{key}: {value!r} is not a name")
    return value


def _text_or_none(key: str, value: Any) -> str | None:
    return None if value is None else _text(key, value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model": _text,
    "prompt_tokens": _count,
    "tp": _count,
    "block_tokens": _count,
    "regions": _count_or_none,
    "road": _text_or_none,
    "operation": _text,
    "series": _text_or_none,
}


def _print(
    scenarios: list[Scenario], asked: Mapping[str, Sequence[Any]], ttft_ms: float | None
) -> None:
    predictions = [one.prediction for one in scenarios if one.prediction]
    if not predictions:
        raise UserError(scenarios[0].refusal)
    if len(scenarios) == 1:
        print(f"PREDICTION: {str(predictions[0]).removeprefix('prediction ')}")
        return
    first = predictions[0]
    varied = [key for key, values in asked.items() if len(values) > 1]
    header = [_LABELS.get(key, key) for key in varied]
    header += ["descriptors", "of bytes", "MB", "PREDICTED ms", "interval", "against first"]
    header += ["of TTFT"] if ttft_ms is not None else []
    rows = [_row(one, first, varied, ttft_ms) for one in scenarios]
    print(f"PREDICTION, nothing here was measured: one rank's pull, {_fixed(asked)}")
    for line in table_lines([*header, ""], rows):
        print(line)
    for series in dict.fromkeys((p.study, p.series) for p in predictions):
        print(f"from the fit of study {series[0]}: {series[1]}")
    for prediction in predictions:
        if prediction.outside:
            print(f"* EXTRAPOLATED: {'; '.join(prediction.outside)}")
    for refusal in dict.fromkeys(one.refusal for one in scenarios if one.refusal):
        print(f"no prediction: {refusal}")
    print(
        "The interval is of a launch's value, by the fit's own error; the ratio's limits are those "
        "of its two intervals at their ends."
    )


def _fixed(asked: Mapping[str, Sequence[Any]]) -> str:
    told = {k: v[0] for k, v in asked.items() if len(v) == 1 and v[0] is not None}
    return ", ".join(f"{key}={value}" for key, value in told.items())


def _row(
    one: Scenario, first: Prediction, varied: Sequence[str], ttft_ms: float | None
) -> list[str]:
    names = [
        "blocks" if one.asked[k] is None and k == "regions" else str(one.asked[k]) for k in varied
    ]
    found = one.prediction
    if found is None:
        return [*names, "", "", "", "none", "", "", *([""] if ttft_ms is not None else []), ""]
    low, high = _limits(found, first)
    cells = [
        f"{found.descriptors:,}",
        f"{found.descriptor_bytes:,}",
        f"{found.pull_bytes / 1e6:,.1f}",
        f"{found.pull_ms:.3g}",
        f"{found.pull_low_ms:.3g} to {found.pull_high_ms:.3g}",
        "1x" if found is first else f"{found.pull_ms / first.pull_ms:.3g}x ({low} to {high})",
    ]
    share = [f"{100 * found.ttft_share:.2g} %"] if ttft_ms is not None else []
    return [*names, *cells, *share, "*" if found.outside else ""]


def _limits(found: Prediction, first: Prediction) -> tuple[str, str]:
    low = found.pull_low_ms / first.pull_high_ms
    if first.pull_low_ms <= 0:
        return f"{low:.2g}", "no limit"
    return f"{low:.2g}", f"{found.pull_high_ms / first.pull_low_ms:.2g}"


def _plain(one: Scenario) -> dict[str, Any]:
    found = one.prediction
    if found is None:
        return {"asked": dict(one.asked), "is_prediction": True, "refusal": one.refusal}
    values = {**vars(found), "outside": list(found.outside)}
    if math.isnan(found.ttft_share):
        values["ttft_share"] = None
    return {"asked": dict(one.asked), "is_prediction": True, **values}
