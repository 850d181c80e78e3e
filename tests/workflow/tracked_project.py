"""A folder in which a study is logged to a store of its own, and what the store then holds."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import ViewType

from kvroad.publish.tracking import log_study
from kvroad.publish.tracking.database import KIND_TAG

STARTED = pd.Timestamp("2026-01-02T03:00:00Z")


LOG_CODE = """
import sys
from pathlib import Path
from kvroad.errors import UserError
from kvroad.publish.tracking import log_study
root = Path(sys.argv[1])
try:
    slug = root / "results" / sys.argv[2]
    print(log_study(slug / "design.json", root / "results", slug / "tables", root / "report"))
except UserError as error:
    sys.exit(str(error))
from mlflow.telemetry import get_telemetry_client
print("telemetry:", get_telemetry_client())
"""


@dataclass
class Project:
    """A project folder with the files of one resolved study."""

    root: Path
    slug: str = "loopback"
    study: str = "loopback"
    session: str = "main"
    arms: tuple[str, ...] = ("shm", "tcp")
    prompts: tuple[int, ...] = (4096, 8192, 16384)
    blocks: int = 4
    unproven: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def cells(self) -> list[dict[str, object]]:
        return [
            {
                "cell": f"{arm}-p{tokens}-b{block}-0123456789ab",
                "launch": f"{arm}-b{block}",
                "arm": arm,
                "transport": arm.partition("+")[0],
                "variant": arm.partition("+")[2] or "blocks",
                "prompt_tokens": tokens,
                "block": block,
            }
            for block in range(self.blocks)
            for tokens in self.prompts
            for arm in self.arms
        ]

    def write(self, pull_ms: Mapping[str, float] | None = None) -> Project:
        """Write all files as they stand after measuring and analysing."""
        folder = self.root / "results" / self.slug
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        design = {"study": self.slug, "study_name": self.study, "session": self.session}
        design |= {"baseline": self.arms[0], "cells": self.cells, "claims": {}}
        (folder / "design.json").write_text(json.dumps(design))
        rows = [self._write_cell(i, cell) for i, cell in enumerate(self.cells)]
        for row in rows if pull_ms else ():
            row["pull_ms"] = pull_ms[row["arm"]]
        table = pd.DataFrame(rows).astype({"attempt": "Int64"})
        table.to_parquet(folder / "tables" / "cells.parquet")
        contrasts = [
            {
                **{"arm": arm, "baseline": self.arms[0], "prompt_tokens": tokens},
                **{"metric": "pull_ms", "ratio": 1.5, "verdict": "slower"},
            }
            for arm in self.arms[1:]
            for tokens in self.prompts
        ]
        pd.DataFrame(contrasts).to_csv(folder / "tables" / "verdict.csv", index=False)
        figures = self.root / "report" / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        (self.root / "report" / "verdict.md").write_text("# tcp is slower\n")
        (figures / "pull.svg").write_text("<svg/>")
        return self

    def _write_cell(self, index: int, cell: dict[str, object]) -> dict[str, object]:
        name = str(cell["cell"])
        if name in self.missing:
            return {**cell, "outcome": "not measured", "reason": "", "attempt": None}
        outcome = self.unproven.get(name, "proven")
        seen = {
            "outcome": outcome,
            "reason": f"{outcome} as seen",
            "attempt": self.attempts.get(name, 1),
        }
        folder = self.root / "results" / "cells" / name
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        (folder / "cell.json").write_text(json.dumps({**cell, "session": self.session}))
        end = STARTED + pd.Timedelta(index + 1, "min")
        measured = {**seen, "measured_at": end.isoformat()}
        (folder / "outcome.json").write_text(json.dumps(measured))
        begin = STARTED + pd.Timedelta(index, "min")
        events = [
            {"event": "phase_start", "cell": name, "time": begin.isoformat()},
            {"event": "phase_end", "cell": name, "time": end.isoformat()},
        ]
        lines = "".join(f"{json.dumps(event)}\n" for event in events)
        (folder / "raw" / "events.jsonl").write_text(lines)
        values = {"pull_ms": 10.0 + index, "post_ms": 1.0, "after_post_ms": 9.0 + index}
        values |= {"pull_in_flight_ms": 20.0, "goodput_gb_per_s": 3.5}
        counts = {"descriptors": 2340, "descriptor_bytes": 131072, "n_pulls": 8, "n_dropped": 0}
        roads = {"road_expected": "cma", "road_seen": "cma" if outcome == "proven" else "tcp"}
        versions = {"nixl_version": "1.5.1", "ucx_version": "1.23.0", "statistic": "median"}
        return {**cell, **seen, **roads, **values, **counts, **versions}

    def log(self, uri: str | None = None):
        folder = self.root / "results" / self.slug
        tables, report = folder / "tables", self.root / "report"
        return log_study(folder / "design.json", self.root / "results", tables, report, uri)

    def log_apart(self, **environment: str) -> subprocess.Popen[str]:
        """Log in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", LOG_CODE, str(self.root), self.slug],
            cwd=self.root,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def stored(place: Path | str, experiment: str = "loopback", view: int = ViewType.ACTIVE_ONLY):
    """Return all runs of an experiment; ``place`` is a database file or a URI."""
    client = MlflowClient(f"sqlite:///{place}" if isinstance(place, Path) else place)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return client.search_runs([found.experiment_id], run_view_type=view, max_results=5000)


def of_kind(runs, kind: str):
    return [run for run in runs if run.data.tags[KIND_TAG] == kind]


def count_runs(database: Path) -> int:
    """Return the number of runs in a database that another process may be writing."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def assert_whole(runs, n_cells: int) -> None:
    """Assert one finished run per cell, each below the one run of its session."""
    cells, (parent,) = of_kind(runs, "cell"), of_kind(runs, "session")
    assert len({run.data.tags["cell"] for run in cells}) == len(cells) == n_cells
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in cells} == {parent.info.run_id}
