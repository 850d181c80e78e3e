"""Studies as they lie on disk: a published report, or the tables of a study run here."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvroad.errors import UserError, nearest
from kvroad.study.name import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RAW_NAME", "SavedStudy", "find_study", "study_names"]

# The raw files of a published study, beside its report.
RAW_NAME = "raw.tar.xz"
_CELLS, _STUDY = "cells.csv", "study.json"
# As `write_table` writes a text that is missing and a text that is empty: the same.
_TEXT_COLUMNS = ("note", "withheld", "outliers", "environment")
# Facts that may differ from launch to launch and say nothing of a host.
_PASSING = ("load_1_min", "memory_available_bytes", "boot_id", "work_dir", "env")


@dataclass(frozen=True)
class SavedStudy:
    """A folder with ``cells.csv`` and ``study.json``, whose tables are read when asked for."""

    name: str
    folder: Path

    def table(self, name: str) -> pd.DataFrame:
        """Return a table by the stem of its file; a missing text is an empty one.

        Raises
        ------
        UserError
            When it is not there, or is no table.
        """
        import pandas as pd

        path = self.folder / f"{name}.csv"
        try:
            frame = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        for column in _TEXT_COLUMNS:
            if column in frame:
                frame[column] = frame[column].astype("object").fillna("").astype(str)
        return frame

    def has(self, name: str) -> bool:
        """Return whether the folder has a table."""
        return (self.folder / f"{name}.csv").is_file()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved study."""
        path = self.folder / _STUDY
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
            raise UserError(f"{path}: not the settings of a study")
        return data

    def facts(self) -> dict[str, set[str]]:
        """Return host facts with the values seen, from the provenance or from the raw files.

        Empty where the folder has neither; load, free memory and boots are left out.
        """
        path = self.folder / "provenance.json"
        found: dict[str, set[str]] = {}
        if path.is_file():
            for name, values in json.loads(path.read_text(encoding="utf-8")).items():
                found[name] = {str(value["value"]) for value in values}
        elif (archive := self.folder / RAW_NAME).is_file():
            for facts in _archived_facts(archive):
                for name, value in _flat(facts).items():
                    found.setdefault(name, set()).add(value)
        return {k: v for k, v in found.items() if k.partition(".")[0] not in _PASSING}


def _archived_facts(archive: Path) -> list[dict[str, Any]]:
    facts = []
    with tarfile.open(archive, mode="r|xz") as files:
        for member in files:
            if member.isfile() and member.name.endswith("/facts.json"):
                file = files.extractfile(member)
                if file is not None:
                    facts.append(json.loads(file.read()))
    return facts


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            flat |= _flat({f"{name}.{key}": inner for key, inner in value.items()})
        elif value is not None:
            flat[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


def study_names(reports: Path, results: Path) -> list[str]:
    """Return the names of studies with a report or tables here."""
    found = [path for place in _places(reports, results) for path in place.glob(f"*/{_CELLS}")]
    return sorted({path.parent.name for path in found})


def _places(reports: Path, results: Path) -> tuple[Path, ...]:
    # What was run here is what its name is taken to mean; a published one still has its path.
    return reports, results / "studies", reports / PUBLISHED


def find_study(word: str, reports: Path, results: Path) -> SavedStudy:
    """Return a study by the path of its folder, or by name: own report, own tables, published.

    Raises
    ------
    UserError
        When there is none; the message lists those that are there.
    """
    for folder in (Path(word), *(place / word for place in _places(reports, results))):
        if (folder / _CELLS).is_file() and (folder / _STUDY).is_file():
            return SavedStudy(folder.resolve().name, folder)
    if Path(word).is_dir():
        raise UserError(f"{word}: a folder without {_CELLS} and {_STUDY}, so no report of a study")
    names = study_names(reports, results)
    places = ", ".join(map(str, _places(reports, results)))
    raise UserError(
        f"no study {word!r} in {places}{nearest(word, names)} (there: {', '.join(names) or 'none'})"
    )
