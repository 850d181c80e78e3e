"""A composed study as a file for the jobs of a run, which then need not compose it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from kvroad.errors import UserError
from kvroad.files import read_json, write_json
from kvroad.study.fields import Study
from kvroad.study.name import resolved
from kvroad.study.setting import section_from
from kvroad.study.typed import typed

__all__ = ["STUDY_VARIABLE", "read_study", "study_path", "write_study"]


# Says to measuring jobs where their study is.
STUDY_VARIABLE = "KVROAD_STUDY"


def study_path(results_dir: Path, run_id: str, overrides: Sequence[str]) -> Path:
    """Return where a run keeps the study that was composed from these overrides."""
    text = json.dumps(list(overrides), ensure_ascii=False)
    return results_dir / "runs" / f"{run_id}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def write_study(study: Study, path: Path) -> None:
    """Write a study; a password in the tracking URI is masked, measuring needs none."""
    # Keys are not sorted: transports and variants are in the order of their arms.
    write_json(path, resolved(study), sort_keys=False)


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
    try:
        # Checked when it was written: to load pydantic once more would take longer than the
        # rest of what a measuring job does before its launch.
        return section_from(Study, data)
    except (KeyError, TypeError):
        # Of another version: the checks say in one line what is unknown or missing.
        return typed(Study, data)
