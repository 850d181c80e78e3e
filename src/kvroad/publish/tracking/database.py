"""What an MLflow database in a SQLite file holds, read without MLflow.

MLflow takes seconds to import, and its search builds every metric and param of every run. The
tables are those of MLflow 3.17.2 (``mlflow/store/tracking/dbmodels/models.py``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kvroad.publish.tracking.run import KEY_TAGS

__all__ = [
    "CONTENT_TAG",
    "KIND_TAG",
    "StoredExperiment",
    "StoredRun",
    "TaggedRun",
    "experiment_in_database",
    "is_run_in_database",
    "runs_in_database",
    "stored_runs",
]

KIND_TAG = "kvroad.kind"
CONTENT_TAG = "kvroad.content"
_TAGS = ("session", KIND_TAG, CONTENT_TAG, *KEY_TAGS.values())


@dataclass(frozen=True)
class StoredRun:
    """A run of ours as MLflow holds it."""

    run_id: str
    kind: str
    key: str
    status: str
    content: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class TaggedRun:
    """A run of any kind, with the tags that were asked for."""

    run_id: str
    status: str
    start_ms: int
    end_ms: int
    tags: Mapping[str, str]


@dataclass(frozen=True)
class StoredExperiment:
    """An experiment that is not in the trash, with its tags."""

    experiment_id: str
    tags: Mapping[str, str]


def stored_runs(runs: Iterable[TaggedRun], session: str) -> list[StoredRun]:
    """Return those that are ours and of a session, oldest first."""
    stored = [
        StoredRun(
            run_id=run.run_id,
            kind=kind,
            key=run.tags.get(KEY_TAGS[kind], ""),
            status=run.status,
            content=run.tags.get(CONTENT_TAG, ""),
            start_ms=run.start_ms,
            end_ms=run.end_ms,
        )
        for run in runs
        if run.tags.get("session") == session and (kind := run.tags.get(KIND_TAG, "")) in KEY_TAGS
    ]
    return sorted(stored, key=lambda run: (run.start_ms, run.run_id))


def runs_in_database(database: Path, experiment_id: str) -> list[TaggedRun] | None:
    """Return an experiment's runs with the tags that find them; None where it cannot be read."""
    where = "WHERE experiment_id = ? AND lifecycle_stage = 'active'"
    places = ", ".join("?" * len(_TAGS))
    tags: dict[str, dict[str, str]] = {}
    try:
        with closing(_opened(database)) as db:
            number = int(experiment_id)
            runs = db.execute(
                f"SELECT run_uuid, status, start_time, end_time FROM runs {where}", (number,)
            ).fetchall()
            for run_id, name, value in db.execute(
                f"SELECT run_uuid, key, value FROM tags JOIN runs USING (run_uuid) {where}"
                f" AND key IN ({places})",
                (number, *_TAGS),
            ):
                tags.setdefault(run_id, {})[name] = value
    except (sqlite3.Error, ValueError):
        return None
    return [
        TaggedRun(run_id, status, start or 0, end or 0, tags.get(run_id, {}))
        for run_id, status, start, end in runs
    ]


def experiment_in_database(database: Path, name: str) -> StoredExperiment | None:
    """Return an experiment by its name; None where there is none or it cannot be read."""
    try:
        with closing(_opened(database)) as db:
            query = "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = ?"
            found = db.execute(query, (name, "active")).fetchone()
            if found is None:
                return None
            query = "SELECT key, value FROM experiment_tags WHERE experiment_id = ?"
            return StoredExperiment(str(found[0]), dict(db.execute(query, found).fetchall()))
    except sqlite3.Error:
        return None


def is_run_in_database(database: Path, run_id: str) -> bool:
    """Return whether a run is there and not in the trash; False where it cannot be read."""
    query = "SELECT 1 FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'"
    try:
        with closing(_opened(database)) as db:
            return db.execute(query, (run_id,)).fetchone() is not None
    except sqlite3.Error:
        return False


def _opened(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)
