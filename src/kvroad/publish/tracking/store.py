"""The one door for mlflow: a locked, initialised store, and the few calls made to it."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import getproxies

from filelock import FileLock, Timeout

from kvroad.errors import UserError
from kvroad.evidence.redact import redact_text
from kvroad.publish.tracking.database import (
    CONTENT_TAG,
    KIND_TAG,
    StoredRun,
    TaggedRun,
    runs_in_database,
    stored_runs,
)
from kvroad.publish.tracking.run import RunRecord
from kvroad.publish.tracking.uri import Target

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Store", "file_lock", "open_store"]

_LOCK_TIMEOUT_S = 900.0
_CONNECT_TIMEOUT_S = 5.0
_PAGE = 1000
# No telemetry, and a server that is gone is reported within seconds: MLflow's own defaults
# retry for minutes. Whoever sets the last three keeps their values.
_ALWAYS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_UNLESS_SET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class Store:
    """The calls that logging needs, on one experiment."""

    def __init__(
        self, client: MlflowClient, experiment_id: str, database: Path | None = None
    ) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._database = database

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment."""
        return self._experiment_id

    def describe(self, tags: Mapping[str, str], first: Mapping[str, str]) -> None:
        """Set the experiment's tags where they differ, those of ``first`` where none is set."""
        held = self._client.get_experiment(self._experiment_id).tags
        for name, value in {**tags, **{k: v for k, v in first.items() if k not in held}}.items():
            if held.get(name) != value:
                self._client.set_experiment_tag(self._experiment_id, name, value)

    def find(self, session: str) -> list[StoredRun]:
        """Return the runs of ours in a session, oldest first, by one search."""
        found = None
        if self._database is not None:
            found = runs_in_database(self._database, self._experiment_id)
        return stored_runs(self._search(session) if found is None else found, session)

    def _search(self, session: str) -> list[TaggedRun]:
        # A quote in the name cannot be written in MLflow's search language: search wider.
        is_plain = not set(session) & set("'\"`\\%")
        where = f"tags.session = '{session}'" if is_plain else ""
        runs, token = [], None
        while True:
            page = self._client.search_runs(
                [self._experiment_id], where, max_results=_PAGE, page_token=token
            )
            for run in page:
                at = run.info.start_time or 0, run.info.end_time or 0
                runs.append(TaggedRun(run.info.run_id, run.info.status, *at, run.data.tags))
            token = page.token
            if not token:
                return runs

    def create(self, record: RunRecord) -> str:
        """Write a run and return its id; its status comes last and says that it is whole."""
        from mlflow.entities import Metric, Param

        tags = {**record.volatile, **record.tags}
        tags |= {KIND_TAG: record.kind, CONTENT_TAG: record.content}
        run = self._client.create_run(
            self._experiment_id, start_time=record.start_ms, tags=tags, run_name=record.name
        )
        run_id = str(run.info.run_id)
        self._put_artifacts(run.info.artifact_uri, record)
        self._client.log_batch(
            run_id,
            metrics=[Metric(k, v, record.end_ms, 0) for k, v in record.metrics.items()],
            params=[Param(k, v) for k, v in record.params.items()],
            synchronous=True,
        )
        self.finish(run_id, record.status, record.end_ms)
        return run_id

    def _put_artifacts(self, artifact_uri: str, record: RunRecord) -> None:
        # MlflowClient.log_artifacts would fetch each new run again to learn its place.
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        if not record.artifacts:
            return
        place = get_artifact_repository(artifact_uri, tracking_uri=self._client.tracking_uri)
        with tempfile.TemporaryDirectory(prefix="kvroad-artifacts-") as folder:
            for name, data in record.artifacts.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            place.log_artifacts(folder)  # type: ignore[no-untyped-call]

    def finish(self, run_id: str, status: str, end_ms: int) -> None:
        """Set a run's final status and end."""
        self._client.set_terminated(run_id, status, end_ms)

    def delete(self, run_id: str) -> None:
        """Move a run to MLflow's trash."""
        self._client.delete_run(run_id)


@contextmanager
def open_store(target: Target, experiment: str) -> Iterator[Store]:
    """Yield the experiment's store; no other process of this machine writes to it meanwhile.

    Raises
    ------
    UserError
        When the store cannot be reached, opened or written, in one line without secrets.
    """
    _prepare(target)
    # mlflow's import takes seconds of CPU: only who logs pays for it.
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        _probe(target)
        with file_lock(target.lock_path, _LOCK_TIMEOUT_S, f"MLflow at {target.shown}"):
            _create_database(target)
            _open_database(target)
            client = MlflowClient(target.uri)
            yield Store(client, _experiment_id(client, target, experiment), target.database)
    except (
        MlflowException,
        SQLAlchemyError,
        ImportError,
        OSError,
        UnicodeError,
        JSONDecodeError,
    ) as error:
        # The cause may spell out a password: the line below is all that may be seen of it.
        raise UserError(_one_line(target, error)) from None


def _prepare(target: Target) -> None:
    os.environ.update(_ALWAYS)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # It prints the stack of what is raised as well, and answered in one line here.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def _probe(target: Target) -> None:
    """Fail within seconds where nothing listens; a proxy is left to answer for itself."""
    if target.address is None or (target.artifact_root is None and getproxies()):
        return
    with closing(socket.create_connection(target.address, timeout=_CONNECT_TIMEOUT_S)):
        pass


@contextmanager
def file_lock(path: Path, timeout_s: float, what: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel drops it when its holder dies.

    Raises
    ------
    UserError
        When another process still holds it after ``timeout_s``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path).acquire(timeout=timeout_s)
    except Timeout:
        raise UserError(
            f"{what}: another process has been logging for {timeout_s:.0f} s"
            f" (lock {path}); run again when it is done"
        ) from None
    with lock:
        yield


def _create_database(target: Target) -> None:
    """Make a new SQLite database beside its place and rename it: it is whole or not there.

    MLflow migrates in place, without a lock: a second opener, or a kill half way, breaks
    the file for good.
    """
    database = target.database
    if database is None:
        return
    for stale in database.parent.glob(f".{database.name}.*.tmp*"):
        stale.unlink()
    if database.is_file() and database.stat().st_size:
        with database.open("rb") as file:
            if file.read(16) != b"SQLite format 3\x00":
                raise UserError(f"MLflow at {target.shown}: the file is no SQLite database")
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    temporary = database.with_name(f".{database.name}.{os.getpid()}.tmp")
    store = SqlAlchemyStore(  # type: ignore[no-untyped-call]
        f"sqlite:///{temporary}", str(target.artifact_root)
    )
    store.engine.dispose()
    temporary.replace(database)


def _open_database(target: Target) -> None:
    """Open a database once under the lock, so that nothing is left for MLflow to migrate."""
    if target.artifact_root is None:
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(  # type: ignore[no-untyped-call]
        target.uri, str(target.artifact_root)
    )
    # MLflow keeps engines per URI: their connections may be to a file deleted meanwhile.
    store.engine.dispose()


def _experiment_id(client: MlflowClient, target: Target, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        root = target.artifact_root
        location = (root / quote(name, safe="")).as_uri() if root else None
        try:
            return str(client.create_experiment(name, location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        number = f" -x {found.experiment_id}" if found else ""
        raise UserError(
            f"MLflow at {target.shown}: experiment {name!r} is in the trash;"
            f" `mlflow experiments restore{number}` brings it back"
        )
    return str(found.experiment_id)


def _one_line(target: Target, error: Exception) -> str:
    """Return what went wrong and what to do; nothing is lost, since files are the truth."""
    text = redact_text(str(error).replace(target.uri, target.shown)).partition("[SQL:")[0]
    reason = " ".join(text.split())[:300] or type(error).__name__
    if "out-of-date database schema" in reason:
        reason = "the database has the schema of another MLflow version"
        advice = "back it up and run `mlflow db upgrade` on it, then run again"
    elif target.database is not None:
        advice = "free the file, or move it away, and run again: all runs are logged anew"
    else:
        advice = "start it or set MLFLOW_TRACKING_URI, and run again: what is missing is logged"
    return f"MLflow at {target.shown}: {reason}; no result is lost; {advice}"
