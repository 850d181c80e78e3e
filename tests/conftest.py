import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
UNIT = REPOSITORY / "tests" / "unit"
# A worker imports pandas and MLflow: more of them than this start for longer than they help.
MOST_WORKERS = 8
# Against hanging only: a study on a loaded machine takes many minutes.
HANG_S = 1800
PARTS = ("Snakefile", "conf", "profiles", "src", "workflow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run tests that take minutes too")
    parser.addoption("--faults-json", help="where the fault matrix writes what it measured")


def pytest_configure() -> None:
    # What a shell starts in the background ignores Ctrl-C and hands that on; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread tests/unit over the cores, where all of it and nothing else is asked for.

    Other tests share this machine's counters, ports and processes: they run one at a time.
    """
    option, folder = config.option, config.invocation_params.dir
    asked = [folder / path for path in config.args]
    is_free = option.numprocesses is None and not option.usepdb and not option.collectonly
    if is_free and asked == [UNIT] and not hasattr(config, "workerinput"):
        option.numprocesses = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
        option.dist = "worksteal"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests, unless --run-slow or an expression of -m asks for them."""
    if config.getoption("--run-slow") or "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]


@dataclass
class Checkout:
    """A copy of the source tree with results, database and host folder of its own."""

    path: Path

    @property
    def home(self) -> Path:
        return self.path / "home"

    def environment(self) -> dict[str, str]:
        # What the outer run says of itself is not meant for the inner one.
        outer = (
            *("KVROAD_RUN_ID", "KVROAD_RUNNER", "MLFLOW_TRACKING_URI"),
            *("SNAKEMAKE_PROFILE", "SSH_AUTH_SOCK"),
        )
        kept = {name: value for name, value in os.environ.items() if name not in outer}
        return {**kept, "PYTHONPATH": str(self.path / "src"), "HOME": str(self.home)}

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Start Snakemake in a process group of its own, as a shell does for a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "1", *words],
            cwd=self.path,
            env={**self.environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def snakemake(
        self, *words: str, check: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*words, **environment) as process:
            out, errors = process.communicate(timeout=HANG_S)
        done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def kvroad(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvroad.cli", *words],
            cwd=self.path,
            env={**self.environment(), **environment},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )

    def jobs(self, *config: str) -> dict[str, int]:
        """Return the jobs that a dry run would run, by rule, without the target itself."""
        words = ["--config", *config] if config else []
        done = (
            self.snakemake("--dry-run", "--quiet", "host", "--", "all", check=True)
            if not words
            else self.snakemake("all", "--dry-run", "--quiet", "host", *words, check=True)
        )
        lines = done.stdout.splitlines() + done.stderr.splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith("job ")]
        if not starts:
            assert "Nothing to be done" in done.stdout + done.stderr, done.stdout + done.stderr
            return {}
        counts = {}
        for line in lines[starts[0] + 2 :]:
            name, _, number = line.partition(" ")
            if name in ("total", ""):
                break
            counts[name] = int(number)
        counts.pop("all", None)
        return counts


@pytest.fixture(scope="session")
def make_checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Checkout]:
    """Return a function that lays down a fresh copy of the tree."""

    def make() -> Checkout:
        path = tmp_path_factory.mktemp("checkout")
        for part in PARTS:
            source = REPOSITORY / part
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, path / part, ignore=ignore)
            else:
                shutil.copy(source, path / part)
        (path / "home").mkdir()
        return Checkout(path)

    return make


@pytest.fixture(scope="session")
def measured(make_checkout: Callable[[], Checkout]) -> Checkout:
    """Return a checkout in which the smoke study has been run for real."""
    checkout = make_checkout()
    checkout.snakemake("all", "--config", "study=smoke", check=True)
    return checkout
