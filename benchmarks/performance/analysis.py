"""From raw files to verdict, figures and report: CPU and memory of each step, by study size."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.performance.checkout import cost_of, load, snakemake
from benchmarks.performance.synthetic import design_of, lay_down, words_of
from kvroad.study.name import study_slug

__all__ = ["SIZES", "measure_analysis", "measure_nothing_to_do", "measure_tracking"]

# Launches of each of two arms at five lengths: 20, 100, 1,000 cells.
SIZES = (2, 10, 100)
STEPS = (
    "tabulate_cells",
    "contrast_arms",
    "fit_cost_model",
    "judge_verdict",
    "judge_claims",
    "plot_figures",
    "write_report",
)
_EMPTY = """\
rule all:
    input: "out/{last}"

rule measure:
    output: "cells/{{n}}"
    shell: "touch {{output}}"
"""


def measure_analysis(folder: Path) -> dict[str, Any]:
    """Run every step of the analysis by itself on studies of each size.

    A step's cost is that of the script as Snakemake starts it: a new interpreter with what
    it imports.
    """
    rows = []
    for launches in SIZES:
        cells = lay_down(folder, launches)
        before = load()
        snakemake(folder, "--until", "write_design", "--config", *words_of(launches))
        for step in STEPS:
            rows.append({"cells": cells, "step": step, **_step(folder, launches, step)})
        rows[-1]["load"] = before
    return {"rows": rows, "bytes": _sizes(folder, SIZES[-1])}


def _step(folder: Path, launches: int, step: str) -> dict[str, float]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.performance.analysis_step",
        step,
        slug_of(folder, launches),
    ]
    cost = cost_of(words, folder)
    return {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "rss_bytes": cost.rss_bytes}


def slug_of(folder: Path, launches: int) -> str:
    """Return the name of the study's folders."""
    return study_slug(design_of(folder, launches)[0])


def _sizes(folder: Path, launches: int) -> dict[str, float]:
    """Return files and bytes of a cell and of a study of that size."""
    study, design = design_of(folder, launches)
    n = len(design.cells)
    results, slug = folder / "results", study_slug(study)
    cells = [p for c in design.cells for p in (results / "cells" / c.id).rglob("*") if p.is_file()]
    receipts = [p for la in design.launches for p in (results / "launches" / la.id).rglob("*")]
    tables = [p for p in (results / "studies" / slug).rglob("*") if p.is_file()]
    report = [p for p in (folder / "reports" / slug).rglob("*") if p.is_file()]
    return {
        "cells": n,
        "files_per_cell": (len(cells) + len(receipts)) / n,
        "bytes_per_cell": sum(p.stat().st_size for p in cells) / n,
        "disk_bytes_per_cell": sum(p.stat().st_blocks * 512 for p in cells) / n,
        "table_bytes": sum(p.stat().st_size for p in tables),
        "report_bytes": sum(p.stat().st_size for p in report),
    }


def measure_nothing_to_do(folder: Path) -> dict[str, Any]:
    """Compare a workflow with 1,000 measured cells with an empty one of as many jobs."""
    launches = SIZES[-1]
    cells = lay_down(folder, launches)
    words = ["all", "--config", *words_of(launches)]
    snakemake(folder, *words)
    empty = folder / "empty"
    _empty_workflow(empty, cells)
    snakemake(empty)
    ours, theirs = [], []
    for _ in range(3):
        done = snakemake(folder, *words)
        assert "Nothing to be done" in done.output, done.output[-2000:]
        ours.append(done.cpu_s)
        theirs.append(snakemake(empty).cpu_s)
    shutil.rmtree(empty)
    return {"cells": cells, "cpu_s": ours, "empty_cpu_s": theirs, "load": load()}


def _empty_workflow(folder: Path, cells: int) -> None:
    """Write a Snakefile without content: as many jobs, then a chain as long as the analysis."""
    folder.mkdir()
    (folder / "home").mkdir()
    names = ["design", *STEPS, "mlflow", "gate"]
    text = _EMPTY.format(last=names[-1])
    for i, name in enumerate(names):
        wanted = f"expand('cells/{{n}}', n=range({cells}))" if i == 0 else f"'out/{names[i - 1]}'"
        text += f'\nrule {name}:\n    input: {wanted}\n    output: "out/{name}"\n'
        text += '    shell: "touch {output}"\n'
    (folder / "Snakefile").write_text(text)
    for path in [*(folder / "cells" / str(n) for n in range(cells))]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    time.sleep(1.1)
    (folder / "out").mkdir()
    for name in names:
        (folder / "out" / name).touch()
        time.sleep(0.02)


def measure_tracking(folder: Path) -> dict[str, Any]:
    """Log the study of 1,000 cells to a new database, then once more."""
    launches = SIZES[-1]
    cells = lay_down(folder, launches)
    for path in folder.glob("bench.db*"):
        path.unlink()
    passes, slug = [], slug_of(folder, launches)
    for _ in range(2):
        cost = cost_of(
            [sys.executable, "-m", "benchmarks.performance.analysis_step", "log", slug],
            folder,
        )
        told = json.loads(cost.output.strip().splitlines()[-1])
        passes.append({"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, **told})
    return {"cells": cells, "passes": passes, "load": load()}
