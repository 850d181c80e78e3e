"""Makes MLflow hold exactly the runs that files and tables call for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvroad.files import read_json, write_json
from kvroad.publish.tracking.database import (
    StoredRun,
    experiment_in_database,
    is_run_in_database,
    runs_in_database,
    stored_runs,
)
from kvroad.publish.tracking.run import RunRecord
from kvroad.publish.tracking.store import Store, open_store
from kvroad.publish.tracking.uri import resolve_target
from kvroad.publish.tracking.views import first_tags, view_tags

if TYPE_CHECKING:
    from kvroad.publish.tracking.study_runs import StudyRecords

__all__ = ["LogSummary", "is_logged", "log_study"]

_UNFINISHED = ("RUNNING", "KILLED")


@dataclass(frozen=True)
class LogSummary:
    """What one call to `log_study` did; the counts are of cell runs.

    Parameters
    ----------
    uri
        Tracking URI without secrets.
    replaced
        Runs whose cell has changed since, such as by a new attempt.
    repaired
        Runs that a killed process had left unfinished.
    """

    uri: str
    experiment: str
    experiment_id: str
    session: str
    summary_run_id: str
    created: int
    replaced: int
    repaired: int
    unchanged: int
    not_measured: int

    def __str__(self) -> str:
        """Return the line for the terminal."""
        counts = [
            f"{getattr(self, name)} {name.replace('_', ' ')}"
            for name in ("created", "replaced", "repaired", "unchanged", "not_measured")
            if getattr(self, name)
        ]
        listed = ", ".join(counts) or "no cells"
        return f"MLflow at {self.uri}, experiment {self.experiment}: cell runs {listed}"

    def write(self, path: Path) -> None:
        """Write the receipt that `is_logged` reads."""
        write_json(path, asdict(self))


def log_study(
    design_path: Path,
    results_dir: Path,
    tables_dir: Path,
    report_dir: Path,
    uri: str | None = None,
    experiment: str | None = None,
) -> LogSummary:
    """Log a resolved study: its session, a run per measured cell, its verdict.

    A run whose content is already there is left alone. Any other is replaced, since MLflow
    lets neither params nor the start time change and keeps every metric: the new run is
    written first, then the old one goes to the trash. A cell has one run per experiment.

    Parameters
    ----------
    uri
        Tracking URI of the configuration; ``MLFLOW_TRACKING_URI`` wins over it.
    experiment
        Name of the experiment, the study's by default.

    Raises
    ------
    UserError
        When the files cannot be read, or the store not be reached, opened or written.
    """
    # pandas is for those who log: a Snakefile asks `is_logged` each time it is read.
    from kvroad.publish.tracking.study_runs import read_records

    root = Path.cwd()
    target = resolve_target(uri, root)
    records = read_records(design_path, results_dir, tables_dir, report_dir, root)
    name = experiment or records.study
    found = _as_it_should_be(target.database, name, records)
    if found is not None:
        experiment_id, summary_run_id = found
        counts = Counter(unchanged=len(records.cells))
    else:
        with open_store(target, name) as store:
            experiment_id = store.experiment_id
            store.describe(view_tags(), first_tags(experiment_id))
            counts, summary_run_id = _reconcile(store, records)
    return LogSummary(
        uri=target.shown,
        experiment=name,
        experiment_id=experiment_id,
        session=records.session,
        summary_run_id=summary_run_id,
        created=counts["created"],
        replaced=counts["replaced"],
        repaired=counts["repaired"],
        unchanged=counts["unchanged"],
        not_measured=records.n_not_measured,
    )


def _as_it_should_be(
    database: Path | None, name: str, records: StudyRecords
) -> tuple[str, str] | None:
    """Return the ids of experiment and summary where a SQLite file holds all of it already.

    None where anything is to be written, or where only MLflow could say.
    """
    experiment = None
    if database is not None and database.is_file():
        experiment = experiment_in_database(database, name)
    if database is None or experiment is None:
        return None
    tags, first = view_tags(), first_tags(experiment.experiment_id)
    if not tags.items() <= experiment.tags.items() or not first.keys() <= experiment.tags.keys():
        return None
    runs = runs_in_database(database, experiment.experiment_id)
    stored = _by_key(stored_runs(runs or [], records.session))
    parents = stored.pop(("session", records.session), [])
    if len(parents) != 1 or not _is_settled_parent(parents[0], records.parent):
        return None
    cells = [(("cell", cell.key), cell.child_of(parents[0].run_id)) for cell in records.cells]
    for key, record in [*cells, (("study", records.summary.key), records.summary)]:
        kept = stored.pop(key, [])
        if len(kept) != 1 or not _is_as(kept[0], record):
            return None
    if any(run.status == "RUNNING" for rest in stored.values() for run in rest):
        return None
    return experiment.experiment_id, kept[0].run_id


def _by_key(runs: Sequence[StoredRun]) -> dict[tuple[str, str], list[StoredRun]]:
    stored: defaultdict[tuple[str, str], list[StoredRun]] = defaultdict(list)
    for run in runs:
        stored[run.kind, run.key].append(run)
    return stored


def _is_as(run: StoredRun, record: RunRecord) -> bool:
    return run.content == record.content and run.status == record.status


def _is_settled_parent(run: StoredRun, record: RunRecord) -> bool:
    return run.status == record.status and run.end_ms >= record.end_ms


def _reconcile(store: Store, records: StudyRecords) -> tuple[Counter[str], str]:
    stored = _by_key(store.find(records.session))
    parent_id = _settle_parent(store, records.parent, stored.pop(("session", records.session), []))
    counts: Counter[str] = Counter()
    for cell in records.cells:
        word, _ = _settle(store, cell.child_of(parent_id), stored.pop(("cell", cell.key), []))
        counts[word] += 1
    _, summary_id = _settle(store, records.summary, stored.pop(("study", records.summary.key), []))
    _close_abandoned(store, stored)
    return counts, summary_id


def _settle(store: Store, record: RunRecord, stored: Sequence[StoredRun]) -> tuple[str, str]:
    """Make one run stand as its record says; return what was done and the run's id."""
    kept = next((run for run in stored if _is_as(run, record)), None)
    if kept is not None:
        word, run_id = "unchanged", kept.run_id
    else:
        is_left = any(run.status in _UNFINISHED for run in stored)
        word = "created" if not stored else "repaired" if is_left else "replaced"
        run_id = store.create(record)
    for run in stored:
        if run.run_id != run_id:
            store.delete(run.run_id)
    return word, run_id


def _settle_parent(store: Store, record: RunRecord, stored: Sequence[StoredRun]) -> str:
    """Return the id of the session's run, which stays the same for ever: cells refer to it."""
    if not stored:
        return store.create(record)
    first, *others = stored
    if not _is_settled_parent(first, record):
        store.finish(first.run_id, record.status, max(record.end_ms, first.end_ms))
    for run in others:
        store.delete(run.run_id)
    return first.run_id


def _close_abandoned(store: Store, stored: Mapping[tuple[str, str], Sequence[StoredRun]]) -> None:
    """Mark runs KILLED that nobody writes any more and that this study does not know."""
    for run in (run for runs in stored.values() for run in runs):
        if run.status == "RUNNING":
            store.finish(run.run_id, "KILLED", max(run.start_ms, run.end_ms))


def is_logged(receipt: Path, uri: str | None = None) -> bool:
    """Return whether a receipt of `LogSummary.write` still holds, without importing mlflow.

    It does not when it names another store, or when the SQLite database no longer has the
    study's run. A server is not asked.
    """
    target = resolve_target(uri, Path.cwd())
    data = read_json(receipt) or {}
    if data.get("uri") != target.shown:
        return False
    if target.database is None:
        return True
    return is_run_in_database(target.database, str(data.get("summary_run_id")))
