"""Cells in any number: copies of a few measured ones under other names, with times that vary."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.performance.checkout import snakemake
from kvroad.agent.manifest import MANIFEST, write_manifest
from kvroad.files import write_json
from kvroad.results import cell_dir, receipt_path
from kvroad.study.compose import compose
from kvroad.study.design import Cell, Design, Launch, make_design
from kvroad.study.fields import Study

__all__ = ["LENGTHS", "design_of", "lay_down", "measure_templates", "words_of"]

LENGTHS = (256, 320, 384, 448, 512)
_PULLS = "workload.warmup_pulls=2 workload.pulls=48 workload.pulls_in_flight=50"
_SPREAD = 0.02
_TIMES = ("post_us", "xfer_us", "wall_us")


def words_of(launches: int) -> list[str]:
    """Return Snakemake's ``--config`` for two arms at five lengths: 100 pulls a cell."""
    lengths = ",".join(map(str, LENGTHS))
    return ["study=smoke", f"launches={launches}", f"prompt_tokens=[{lengths}]", f"hydra={_PULLS}"]


def design_of(folder: Path, launches: int) -> tuple[Study, Design]:
    """Return the study of `words_of` and its design."""
    *plain, hydra = words_of(launches)
    study = compose([*plain, *hydra.removeprefix("hydra=").split()], folder / "conf")
    return study, make_design(study)


def measure_templates(folder: Path) -> None:
    """Measure the study of two launches for real."""
    snakemake(folder, "all", "--config", *words_of(2))


def lay_down(folder: Path, launches: int, seed: int = 1) -> int:
    """Write the cells of the study of so many launches that are not there; return their number."""
    _, design = design_of(folder, launches)
    _, measured = design_of(folder, 2)
    results, rng = folder / "results", random.Random(seed)
    templates = {(c.arm, c.prompt_tokens, c.block): c for c in measured.cells}
    for launch in design.launches:
        for cell in launch.cells:
            if not (cell_dir(results, cell.id) / "outcome.json").exists():
                template = templates[cell.arm, cell.prompt_tokens, cell.block % 2]
                _copy(results, template, cell, rng)
        _receipt(results, launch)
    return len(design.cells)


def _copy(results: Path, template: Cell, cell: Cell, rng: random.Random) -> None:
    source, target = cell_dir(results, template.id), cell_dir(results, cell.id)
    shutil.copytree(source / "raw", target / "raw")
    factor = math.exp(rng.gauss(0.0, _SPREAD))
    for path in (target / "raw").rglob("*"):
        if path.is_file() and path.name != MANIFEST and path.suffix in (".json", ".jsonl"):
            text = path.read_text().replace(template.id, cell.id)
            if path.name.startswith("pulls-"):
                text = "".join(_varied(json.loads(x), factor) for x in text.splitlines())
            path.write_text(text)
    write_manifest(target / "raw")
    facts = json.loads((source / "cell.json").read_text())
    told = {"cell": cell.id, "launch": cell.id, "block": cell.block, "identity": cell.identity}
    write_json(target / "cell.json", {**facts, **told})
    shutil.copy(source / "outcome.json", target / "outcome.json")


def _varied(row: dict[str, Any], factor: float) -> str:
    for name in _TIMES:
        row[name] = round(row[name] * factor, 3)
    return json.dumps(row) + "\n"


def _receipt(results: Path, launch: Launch) -> None:
    path = receipt_path(results, launch.id, 1)
    if not path.exists():
        write_json(path, {"launch": launch.id, "attempt": 1, "cells": _proven(launch.cells)})


def _proven(cells: Iterable[Cell]) -> dict[str, str]:
    return {cell.id: "proven" for cell in cells}
