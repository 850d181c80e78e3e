"""Where the wall time of a study goes: measuring windows, engines' start and stop, the rest."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.performance.checkout import cost_of, load, snakemake
from kvroad.study.compose import compose
from kvroad.study.design import make_design

__all__ = ["measure_imports", "measure_shares"]

_HEAVY = ("pandas", "numpy", "scipy", "mlflow", "matplotlib", "seaborn", "pyarrow", "fabric")


def measure_shares(folder: Path, study: str, *words: str) -> dict[str, Any]:
    """Run a study for real and divide its wall time, from its first launch to its last job."""
    before, started = load(), time.time()
    done = snakemake(folder, "all", "--config", f"study={study}", *words)
    ended = time.time()
    jobs = _jobs(folder)
    # The cells of a launch share its files.
    design = make_design(_study(folder, [f"study={study}", *words]))
    launches = [_launch(folder, launch.cells[0].id) for launch in design.launches]
    measuring = [job for job in jobs if job["rule"] == "measure_launch"]
    analysis = [job for job in jobs if job["rule"] != "measure_launch"]
    first = min(job["start"] for job in measuring)
    total = max(job["end"] for job in jobs) - first
    windows = sum(launch["windows"] for launch in launches)
    engines = sum(launch["start"] + launch["stop"] for launch in launches)
    in_jobs = sum(job["end"] - job["start"] for job in measuring)
    # write_design may run before the first launch.
    of_analysis = sum(job["end"] - max(job["start"], first) for job in analysis)
    steps: dict[str, float] = defaultdict(float)
    for job in analysis:
        steps[job["rule"]] += job["end"] - job["start"]
    return {
        "study": " ".join([study, *words]),
        "launches": len(launches),
        "total_s": total,
        "windows_s": windows,
        "engines_s": engines,
        "rest_s": total - windows - engines,
        "rest": {
            "around a launch, in its job": in_jobs - windows - engines,
            "analysis": of_analysis,
            "between jobs": total - in_jobs - of_analysis,
        },
        "analysis_s": dict(steps),
        "cpu_s": done.cpu_s,
        "command_s": ended - started,
        "before_first_launch_s": first - started,
        "first_pull_s": min(launch["first"] for launch in launches) - started,
        "load": before,
    }


def _study(folder: Path, words: list[str]) -> Any:
    return compose(words, folder / "conf")


def _jobs(folder: Path) -> list[dict[str, Any]]:
    """Return rule, start and end of each job, as Snakemake keeps them for each of its outputs.

    Only launches have several jobs of a rule, with one output each.
    """
    found: dict[Any, dict[str, Any]] = {}
    for path in (folder / ".snakemake" / "metadata").rglob("*"):
        if path.is_file():
            data = json.loads(path.read_text())
            job = {"rule": data["rule"], "start": data["starttime"], "end": data["endtime"]}
            key = path if job["rule"] == "measure_launch" else job["rule"]
            same = found.setdefault(key, job)
            same["start"] = min(same["start"], job["start"])
            same["end"] = max(same["end"], job["end"])
    return list(found.values())


def _launch(folder: Path, cell: str) -> dict[str, float]:
    """Return seconds of a launch: its start, its phases, its stop."""
    path = folder / "results" / "cells" / cell / "raw" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    at = {name: [e for e in events if e["event"] == name] for name in {e["event"] for e in events}}
    starts, ends = at["phase_start"], at["phase_end"]
    first = datetime.strptime(starts[0]["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return {
        "start": (starts[0]["mono_ns"] - at["launch"][0]["mono_ns"]) / 1e9,
        "windows": sum(
            (e["mono_ns"] - s["mono_ns"]) / 1e9 for s, e in zip(starts, ends, strict=True)
        ),
        "stop": (at["end"][-1]["mono_ns"] - ends[-1]["mono_ns"]) / 1e9,
        "first": first.timestamp(),
    }


def measure_imports(folder: Path) -> dict[str, Any]:
    """Return what parsing the workflow imports, and what a measuring job does before it starts."""
    dry = snakemake(folder, "-n", "all", "--config", "study=smoke")
    plain = cost_of([sys.executable, "-c", "import snakemake.cli"], folder)
    return {
        "parsing": _imports(folder, folder / "Snakefile"),
        "measuring": _imports(folder, folder / "workflow" / "scripts" / "measure_launch.py"),
        "dry_run_cpu_s": dry.cpu_s,
        "snakemake_alone_cpu_s": plain.cpu_s,
        "load": load(),
    }


def _imports(folder: Path, path: Path) -> dict[str, Any]:
    """Return what a file's own imports of kvroad bring in and take."""
    lines = [x for x in path.read_text().splitlines() if x.startswith("from kvroad")]
    cost = cost_of([sys.executable, "-X", "importtime", "-c", "; ".join(lines)], folder)
    return {**_times(cost.output), "cpu_s": cost.cpu_s}


def _times(text: str) -> dict[str, Any]:
    """Return seconds by top-level package, and the heavy ones among them."""
    own: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        found = re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)", line)
        if found:
            own[found[2].split(".")[0]] += int(found[1]) / 1e6
    largest = sorted(own.items(), key=lambda item: -item[1])[:8]
    return {
        "heavy": sorted(set(own) & set(_HEAVY)),
        "largest": [{"package": name, "seconds": s} for name, s in largest],
        "all_s": sum(own.values()),
    }
