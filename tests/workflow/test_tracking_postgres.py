"""Tracking against a real PostgreSQL, which the test starts as the user `postgres`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_page import searches
from ports import free_port
from test_tracking_live import Project, assert_whole, of_kind, refusal, stored

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Postgres:
    """A database cluster in a folder of its own, listening on loopback."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder, self.port = programs, folder, free_port()
        self.run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "kvroad")

    def run(self, program: str, *words: str) -> None:
        # PostgreSQL refuses to run as root.
        command = [str(self.programs / program), *words]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, cwd=self.folder, timeout=300, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        listen = f"-h 127.0.0.1 -p {self.port} -k {self.folder}"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", listen, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")

    def uri(self, database: str) -> str:
        """Make a new database and return its URI."""
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "kvroad", database)
        return f"postgresql://kvroad:hush@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL: .ci/install_servers installs it")
    # Not below pytest's folder, which the user postgres cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="kvroad-postgres-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    server = Postgres(found[-1].parent, folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_three_studies_at_once_on_a_new_database(postgres: Postgres, tmp_path: Path) -> None:
    uri = postgres.uri("fresh")
    wide = Project(tmp_path, slug="wide").write()
    narrow = Project(tmp_path, slug="narrow", prompts=(4096,)).write()
    smoke = Project(tmp_path, slug="smoke", study="smoke", arms=("shm", "roce")).write()
    loggers = [study.log_apart(MLFLOW_TRACKING_URI=uri) for study in (wide, narrow, smoke)]
    texts = [logger.communicate(timeout=300) for logger in loggers]
    assert [logger.returncode for logger in loggers] == [0, 0, 0], texts
    assert "hush" not in "".join(out + err for out, err in texts)
    assert_whole(stored(uri), 24)
    assert_whole(stored(uri, "smoke"), 24)


def test_repair_odd_names_and_the_documented_searches(postgres: Postgres, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = postgres.uri("odd")
    arms = ("nvlink", "nvlink+" + "v[é" * 50, "roce")
    refused = {"roce-p16384-b0-0123456789ab": "refused"}
    project = Project(tmp_path, arms=arms, blocks=1, unproven=refused, session='it\'s "so" 100%')
    assert project.write().log(uri).created == 9
    assert project.log(uri).unchanged == 9
    client = MlflowClient(uri)
    broken = of_kind(stored(uri), "cell")[0]
    client.update_run(broken.info.run_id, status="RUNNING")
    assert project.log(uri).repaired == 1
    found = {n: len(search.run(client, ["loopback"])) for n, search in searches().items()}
    assert found == {1: 2, 2: 1, 3: 1, 4: 1, 5: 0}


def test_lost_database_is_one_line_without_the_password(postgres: Postgres, tmp_path: Path) -> None:
    uri = postgres.uri("lost")
    project = Project(tmp_path).write()
    postgres.stop()
    try:
        assert "hush" not in refusal(project, uri)
    finally:
        postgres.start()
    assert project.log(uri).created == 24
    assert_whole(stored(uri), 24)
