"""Tracking against real MLflow stores: SQLite databases and a real server."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.utils.validation import _validate_metric, _validate_param, _validate_tag
from mlflow_server import server
from ports import free_port
from proxy import Proxy
from tracked_project import STARTED, Project, assert_whole, count_runs, of_kind, stored
from waiting import wait_until

from kvroad.errors import UserError
from kvroad.publish.tracking import is_logged, legal_name, log, resolve_target
from kvroad.publish.tracking.store import open_store


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An initialised database: making one costs seconds."""
    folder = tmp_path_factory.mktemp("template")
    with open_store(resolve_target("sqlite:///mlflow.db", folder), "Default"):
        pass
    return folder / "mlflow.db"


@pytest.fixture
def database(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copy(template, tmp_path / "mlflow.db"))


@pytest.fixture
def project(tmp_path: Path, database: Path) -> Project:
    return Project(tmp_path).write()


class TestStudy:
    def test_is_logged_once(self, project, database):
        first = project.log()
        runs = stored(database)
        assert (first.created, first.unchanged, first.not_measured) == (24, 0, 0)
        assert_whole(runs, 24)
        again = project.log()
        assert (again.created, again.replaced, again.repaired, again.unchanged) == (0, 0, 0, 24)
        after = stored(database, view=ViewType.ALL)
        assert {run.info.run_id for run in after} == {run.info.run_id for run in runs}
        assert len(after) == 26

    def test_what_is_there_is_told_without_mlflow(self, project, database, monkeypatch):
        project.log()
        monkeypatch.setattr(log, "open_store", lambda *_: pytest.fail("the store was opened"))
        assert project.log().unchanged == len(project.cells)

    def test_cell_run_says_what_was_measured(self, project, database):
        project.log()
        (run,) = [r for r in stored(database) if r.info.run_name == "tcp 16384 b1"]
        assert run.data.metrics["pull_ms/p50"] == 21.0
        assert run.data.metrics["descriptors"] == 2340.0
        assert run.data.params == {
            **{"arm": "tcp", "transport": "tcp", "variant": "blocks", "prompt_tokens": "16384"},
            **{"block": "1", "nixl": "1.5.1", "ucx": "1.23.0"},
        }
        assert run.data.tags["road_seen"] == "cma"
        assert pd.Timestamp(run.info.start_time, unit="ms", tz="UTC") == STARTED + pd.Timedelta(
            11, "min"
        )
        assert run.info.end_time - run.info.start_time == 60_000
        files = MlflowClient(f"sqlite:///{database}").list_artifacts(run.info.run_id)
        assert [file.path for file in files] == ["cell.json", "outcome.json"]

    def test_summary_run_carries_verdict_and_figures(self, project, database):
        summary_id = project.log().summary_run_id
        client = MlflowClient(f"sqlite:///{database}")
        run = client.get_run(summary_id)
        assert run.data.tags["study_slug"] == "loopback"
        assert run.data.metrics["pull_ms_ratio/tcp_vs_shm_p8192"] == 1.5
        assert run.data.tags["verdict/pull_ms/tcp_vs_shm_p8192"] == "slower"
        assert {f.path for f in client.list_artifacts(summary_id)} == {"verdict.md", "figures"}

    def test_artifacts_lie_beside_the_database_whatever_its_path(self, tmp_path, template):
        folder = tmp_path / "a #1 100% folder"
        project = Project(folder).write()
        shutil.copy(template, folder / "m.db")
        project.log(f"sqlite:///{folder}/m.db")
        outcomes = list((folder / "mlartifacts" / "loopback").rglob("outcome.json"))
        assert len(outcomes) == 24
        (run, *_) = of_kind(stored(folder / "m.db"), "cell")
        client = MlflowClient(f"sqlite:///{folder}/m.db")
        copy = client.download_artifacts(run.info.run_id, "outcome.json", str(tmp_path))
        assert json.loads(Path(copy).read_text())["outcome"] == "proven"

    def test_unproven_cell_is_failed_then_measured_again(self, project, database):
        cell = "tcp-p8192-b2-0123456789ab"
        project.unproven = {cell: "refused"}
        project.write().log()
        (run,) = [r for r in stored(database) if r.data.tags.get("cell") == cell]
        assert (run.info.status, run.data.metrics) == ("FAILED", {})
        assert run.data.tags["reason"] == "refused as seen"
        project.unproven, project.attempts = {}, {cell: 2}
        done = project.write().log()
        assert (done.created, done.replaced, done.unchanged) == (0, 1, 23)
        assert_whole(stored(database), 24)
        (run,) = [r for r in stored(database) if r.data.tags.get("cell") == cell]
        assert (run.data.tags["attempt"], run.data.metrics["n_pulls"]) == ("2", 8.0)

    def test_only_what_changed_is_written(self, project, database):
        project.missing = ("tcp-p8192-b2-0123456789ab",)
        assert project.write().log().not_measured == 1
        before = {run.info.run_id for run in of_kind(stored(database), "cell")}
        project.missing = ()
        done = project.write().log()
        assert (done.created, done.unchanged) == (1, 23)
        assert before < {run.info.run_id for run in of_kind(stored(database), "cell")}

    def test_resolved_studies_share_the_runs_of_their_cells(self, project, database):
        project.log()
        narrow = Project(project.root, slug="loopback+narrow", prompts=(4096,)).write()
        assert (narrow.log().created, narrow.log().unchanged) == (0, 8)
        runs = stored(database)
        assert [len(of_kind(runs, kind)) for kind in ("cell", "session", "study")] == [24, 1, 2]

    def test_sessions_have_parents_of_their_own(self, project, database):
        project.log()
        july = Project(project.root, session="july", slug="loopback+july", arms=("nvlink",))
        assert july.write().log().created == 12
        assert len(of_kind(stored(database), "session")) == 2

    def test_long_and_odd_names(self, tmp_path, database):
        arm = "tcp+" + "v[é" * 50
        project = Project(tmp_path, arms=("shm", arm), blocks=1, session='it\'s "so" 100%').write()
        assert project.log().created == 6
        assert project.log().unchanged == 6
        (summary,) = of_kind(stored(database), "study")
        name = f"pull_ms_ratio/{arm}_vs_shm_p4096".replace("+", ".")
        assert summary.data.metrics[legal_name(name)] == 1.5
        assert summary.data.tags[f"long_name/{legal_name(name)[-16:]}"] == name

    @pytest.mark.parametrize("name", ["kv_pull[16k]{rank=0}:p50", "a//b", "../a", "~", "é" * 300])
    def test_mlflow_takes_our_names(self, name):
        _validate_metric(legal_name(name), 1.0, 0, 0)
        _validate_param(legal_name(name), "1")
        _validate_tag(legal_name(name), "1")


class TestDamage:
    @pytest.mark.slow
    def test_killed_logger_is_made_good(self, tmp_path, template, database):
        project = Project(tmp_path, blocks=40).write()
        logger = project.log_apart()
        wait_until(lambda: count_runs(database) >= 5, "five runs")
        logger.send_signal(signal.SIGKILL)
        logger.communicate()
        begun = count_runs(database)
        assert 5 <= begun < 240
        done = project.log()
        assert done.created + done.repaired + done.unchanged == 240
        assert done.created >= 235 - begun
        assert_whole(stored(database), 240)

    @pytest.mark.parametrize("status", ["RUNNING", "KILLED"])
    def test_run_that_was_not_finished_is_repaired(self, project, database, status):
        project.log()
        run = of_kind(stored(database), "cell")[3]
        MlflowClient(f"sqlite:///{database}").update_run(run.info.run_id, status=status)
        done = project.log()
        assert (done.repaired, done.unchanged) == (1, 23)
        assert_whole(stored(database), 24)

    def test_run_that_nobody_finishes_is_closed(self, project, database):
        project.log()
        Project(project.root, slug="wide", arms=("shm", "tcp", "roce")).write().log()
        run = next(r for r in stored(database) if r.data.params.get("arm") == "roce")
        client = MlflowClient(f"sqlite:///{database}")
        client.update_run(run.info.run_id, status="RUNNING")
        project.log()
        assert client.get_run(run.info.run_id).info.status == "KILLED"

    def test_double_run_is_removed(self, project, database):
        project.log()
        run = of_kind(stored(database), "cell")[0]
        client = MlflowClient(f"sqlite:///{database}")
        double = client.create_run(run.info.experiment_id, 1, run.data.tags)
        client.set_terminated(double.info.run_id, "FINISHED", 2)
        assert project.log().unchanged == 24
        assert_whole(stored(database), 24)

    def test_deleted_database_is_filled_again(self, project, database, tmp_path):
        project.log().write(tmp_path / "receipt.json")
        assert is_logged(tmp_path / "receipt.json")
        database.unlink()
        assert not is_logged(tmp_path / "receipt.json")
        assert project.log().created == 24
        assert_whole(stored(database), 24)
        assert not is_logged(tmp_path / "receipt.json")

    def test_changed_uri_is_filled(self, project, template, tmp_path, monkeypatch):
        project.log().write(tmp_path / "receipt.json")
        other = Path(shutil.copy(template, tmp_path / "other.db"))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
        assert not is_logged(tmp_path / "receipt.json")
        assert project.log("sqlite:///mlflow.db").created == 24
        assert_whole(stored(other), 24)

    def test_two_studies_at_once_on_a_fresh_database(self, tmp_path):
        wide = Project(tmp_path, slug="wide").write()
        narrow = Project(tmp_path, slug="narrow", prompts=(4096,)).write()
        smoke = Project(tmp_path, slug="smoke", study="smoke", arms=("shm", "roce")).write()
        loggers = [study.log_apart() for study in (wide, narrow, smoke)]
        texts = [logger.communicate(timeout=300) for logger in loggers]
        assert [logger.returncode for logger in loggers] == [0, 0, 0], texts
        assert [out.splitlines()[1:] for out, _ in texts] == [["telemetry: None"]] * 3
        assert [err for _, err in texts] == ["", "", ""]
        assert_whole(stored(tmp_path / "mlflow.db"), 24)
        assert_whole(stored(tmp_path / "mlflow.db", "smoke"), 24)
        assert not list(tmp_path.glob(".mlflow.db*"))


def refusal(project: Project, uri: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        project.log(uri)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


class Greeter(BaseHTTPRequestHandler):
    """Some other web server that answers everything with a page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        pass


class TestRefusals:
    def test_file_that_is_no_database(self, project, database):
        database.write_text("not a database, but text")
        assert "no SQLite database" in refusal(project)

    def test_schema_of_another_mlflow(self, project, database):
        with closing(sqlite3.connect(database)) as db:
            db.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
            db.commit()
        assert "mlflow db upgrade" in refusal(project)

    def test_half_made_database(self, project, database):
        with closing(sqlite3.connect(database)) as db:
            db.execute("PRAGMA foreign_keys = OFF")
            db.execute("DROP TABLE metrics")
            db.commit()
        assert "move it away" in refusal(project)

    def test_folder_that_cannot_be_written(self, project, tmp_path):
        (tmp_path / "taken").write_text("a file where a folder should be")
        assert "no result is lost" in refusal(project, "sqlite:///taken/mlflow.db")

    def test_experiment_in_the_trash(self, project, database):
        project.log()
        client = MlflowClient(f"sqlite:///{database}")
        number = client.get_experiment_by_name("loopback").experiment_id
        client.delete_experiment(number)
        assert f"mlflow experiments restore -x {number}" in refusal(project)

    @pytest.mark.parametrize("scheme", ["http", "postgresql"])
    def test_nobody_listens(self, project, scheme):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            began = time.monotonic()
            text = refusal(project, f"{scheme}://me:hush@127.0.0.1:{port}/kv")
        # MLflow by itself goes on for minutes.
        assert time.monotonic() - began < 60
        assert f"127.0.0.1:{port}" in text
        assert "MLFLOW_TRACKING_URI" in text
        assert "hush" not in text

    @pytest.mark.parametrize("uri", ["http://no..host", "http://nowhere.invalid:5000"])
    def test_host_that_is_not_there(self, project, uri):
        assert f"MLflow at {uri}" in refusal(project, uri)

    def test_server_that_is_no_mlflow(self, project):
        with ThreadingHTTPServer(("127.0.0.1", 0), Greeter) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            assert "no result is lost" in refusal(project, f"http://127.0.0.1:{other.server_port}")
            other.shutdown()

    def test_server_that_never_answers(self, project, monkeypatch):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        with socket.create_server(("127.0.0.1", 0)) as mute:
            text = refusal(project, f"http://me:hush@127.0.0.1:{mute.getsockname()[1]}")
        assert "hush" not in text
        assert "no result is lost" in text


@pytest.mark.live
class TestServer:
    def test_study_is_logged_once_and_caught_up_after_a_loss(self, tmp_path, template):
        shutil.copy(template, tmp_path / "server.db")
        port = free_port()
        # The logger waits in it for its next answer until the server is gone.
        proxy = Proxy(port)
        proxy.when(lambda: count_runs(tmp_path / "server.db") >= 15, proxy.go_silent)
        project = Project(tmp_path, blocks=10).write()
        uri = f"http://127.0.0.1:{proxy.port}"
        with server(tmp_path, port):
            logger = project.log_apart(MLFLOW_TRACKING_URI=uri)
            wait_until(lambda: proxy.is_silent or logger.poll() is not None, "15 runs")
        proxy.come_back()
        out, err = logger.communicate(timeout=300)
        assert (logger.returncode, out) == (1, "")
        assert len(err.strip().splitlines()) == 1, err
        assert f"MLflow at {uri}" in err
        begun = count_runs(tmp_path / "server.db")
        assert 15 <= begun < 60
        with server(tmp_path, port):
            done = project.log(uri)
            assert done.created + done.repaired + done.unchanged == 60
            assert done.unchanged >= begun - 3
            assert project.log(uri).unchanged == 60
            assert_whole(stored(uri), 60)
            client = MlflowClient(uri)
            (run, *_) = of_kind(stored(uri), "cell")
            copy = client.download_artifacts(run.info.run_id, "outcome.json", str(tmp_path))
            assert json.loads(Path(copy).read_text())["outcome"] == "proven"
            assert (tmp_path / "served").is_dir()
        proxy.close()
