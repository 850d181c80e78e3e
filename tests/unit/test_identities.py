"""Cells keep their names: an edit of code never measures a committed study again."""

import hashlib
import json
from pathlib import Path

import pytest

from kvroad.study.compose import compose
from kvroad.study.design import make_design

REPOSITORY = Path(__file__).parents[2]
CONF = REPOSITORY / "conf"
# Taken before the modules were moved into rooms; MEASUREMENT_VERSION was 1.
KEPT = json.loads((REPOSITORY / "tests/data/identities.json").read_text())


def names_of(overrides: list[str]) -> dict[str, object]:
    design = make_design(compose(overrides, CONF))
    lines = [
        f"{launch.id} {' '.join(cell.id for cell in launch.cells)}" for launch in design.launches
    ]
    return {
        "launches": len(design.launches),
        "cells": len(design.cells),
        "first_cell": design.cells[0].id,
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }


@pytest.mark.parametrize("words", KEPT)
def test_cells_of_committed_studies_keep_their_names(words: str):
    assert names_of(words.split()) == KEPT[words]


def test_every_committed_study_that_stood_before_is_held():
    held = {word.removeprefix("study=") for words in KEPT for word in words.split()[:1]}
    assert held <= {path.stem for path in (CONF / "study").glob("*.yaml")}
    assert "h200_serving" in held


def test_another_seed_gives_other_names():
    assert names_of(["study=smoke", "seed=99"]) != KEPT["study=smoke"]
