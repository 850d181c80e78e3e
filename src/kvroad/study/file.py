"""A composed study as a file for the jobs of a run, which then need not compose it again."""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from kvroad.errors import UserError
from kvroad.files import read_json
from kvroad.study.fields import Study
from kvroad.study.name import resolved

__all__ = ["STUDY_VARIABLE", "read_study", "study_path", "write_study"]


# Says to measuring jobs where their study is.
STUDY_VARIABLE = "KVROAD_STUDY"


def study_path(results_dir: Path, run_id: str, overrides: Sequence[str]) -> Path:
    """Return where a run keeps the study that was composed from these overrides."""
    text = json.dumps(list(overrides), ensure_ascii=False)
    return results_dir / "runs" / f"{run_id}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def write_study(study: Study, path: Path) -> None:
    """Write a study; a password in the tracking URI is masked, measuring needs none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    # Keys are not sorted: transports and variants are in the order of their arms.
    temporary.write_text(json.dumps(resolved(study), ensure_ascii=False) + "\n")
    temporary.replace(path)


def read_study(path: Path) -> Study:
    """Return the study that was written.

    Raises
    ------
    UserError
        When there is none.
    """
    data = read_json(path)
    if data is None:
        raise UserError(f"{path}: no study there; Snakemake writes it before the first launch")
    study = _build(Study, data)
    assert isinstance(study, Study)
    return study


def _build(owner: Any, data: dict[str, Any]) -> Any:
    hints = get_type_hints(owner)
    return owner(**{key: _value(hints[key], value) for key, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None if value is None else _value(get_args(hint)[0], value)
    if is_dataclass(hint):
        return _build(hint, value)
    if get_origin(hint) is list:
        return [_value(get_args(hint)[0], item) for item in value]
    if get_origin(hint) is dict:
        return {key: _value(get_args(hint)[1], item) for key, item in value.items()}
    return value
