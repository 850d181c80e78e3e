"""docs/verdict.schema.json describes what is written: published verdicts, and one of each word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from synthetic import planned, pull_rows, refused_outcome, write_cell, write_design

from kvroad.analysis import stats, tables, verdict
from kvroad.analysis.tables import METRICS
from kvroad.analysis.verdict import SCHEMA

ROOT = Path(__file__).parent.parent.parent
DESCRIBED: dict[str, Any] = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
PUBLISHED = sorted(ROOT.glob("reports/published/*/verdict.json"))
VALIDATOR = Draft202012Validator(DESCRIBED)


def faults(data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def written(folder: Path, arms: list[str], refused: set[str]) -> dict[str, Any]:
    cells = planned(arms, [4096], 2)
    for position, cell in enumerate(cells):
        result = refused_outcome() if cell.arm in refused else None
        write_cell(
            folder,
            cell,
            pull_rows(cell, lambda c, phase, pull: (500.0, 1000.0 + pull), 2),
            order=position,
            result=result,
        )
    path = write_design(folder / "design.json", cells)
    tables.build(path, folder, folder)
    stats.build(folder / "cells.parquet", path, folder)
    verdict.build(folder / "contrasts.parquet", folder / "cells.parquet", path, folder)
    # What JSON does not have, such as NaN, is refused.
    return json.loads(
        (folder / "verdict.json").read_text(),
        parse_constant=lambda text: pytest.fail(f"{text} is no JSON"),
    )


def test_schema_is_a_schema_of_this_version() -> None:
    Draft202012Validator.check_schema(DESCRIBED)
    assert DESCRIBED["properties"]["schema"]["const"] == SCHEMA
    described = DESCRIBED["$defs"]["row"]["properties"]["metric"]["description"].split("; ")[1]
    for metric in METRICS:
        assert metric.name in described.split(", ")


@pytest.mark.parametrize("path", PUBLISHED, ids=str)
def test_published_verdicts_keep_to_it(path: Path) -> None:
    assert faults(json.loads(path.read_text())) == []


def test_refusals_and_lone_arms_keep_to_it(tmp_path: Path) -> None:
    data = written(tmp_path / "a", ["shm", "tcp", "roce"], {"roce"})
    assert data["refused"]
    assert faults(data) == []
    assert faults(written(tmp_path / "b", ["roce"], {"roce"})) == []


def test_what_is_not_described_is_told(tmp_path: Path) -> None:
    data = written(tmp_path, ["shm", "tcp"], set())
    data["rows"][0]["verdict"] = "quicker"
    data["rows"][1]["surprise"] = 1
    assert len(faults(data)) == 2
