"""A copy of the source tree to run studies in, and what a process has cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["ROOT", "Cost", "checkout", "cost_of", "load", "snakemake"]

ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("Snakefile", "conf", "profiles", "src", "workflow")


@dataclass(frozen=True)
class Cost:
    """What a process and its children took; ``rss_bytes`` is the most that any one held."""

    wall_s: float
    cpu_s: float
    rss_bytes: int
    output: str


@contextmanager
def checkout(place: Path | None = None) -> Iterator[Path]:
    """Yield a fresh copy of the tree in a temporary folder, or ``place`` as it is."""
    if place is not None:
        yield place
        return
    with TemporaryDirectory(prefix="kvroad-benchmark-") as name:
        for part in _PARTS:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, Path(name) / part, ignore=ignored)
            else:
                shutil.copy(source, Path(name) / part)
        (Path(name) / "home").mkdir()
        # Serving engines are found there; setting them up takes gigabytes.
        engines = Path.home() / ".cache" / "kvroad"
        if engines.is_dir():
            (Path(name) / "home" / ".cache").mkdir()
            (Path(name) / "home" / ".cache" / "kvroad").symlink_to(engines)
        yield Path(name)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of commands in a checkout."""
    # Without compiled files of its own every process would compile kvroad anew.
    outer = (
        *("KVROAD_RUN_ID", "KVROAD_RUNNER", "MLFLOW_TRACKING_URI", "SNAKEMAKE_PROFILE"),
        "PYTHONDONTWRITEBYTECODE",
    )
    kept = {k: v for k, v in os.environ.items() if k not in outer}
    return {
        **kept,
        "PYTHONPATH": f"{folder}/src:{ROOT}",
        "HOME": f"{folder}/home",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


def cost_of(words: list[str], folder: Path, *, check: bool = True) -> Cost:
    """Run a command in a checkout and return its cost, that of its children included.

    Raises
    ------
    RuntimeError
        When it fails and ``check`` is set.
    """
    log = folder / "benchmark.log"
    start = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(folder), stdout=out, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s, text = time.monotonic() - start, log.read_text(errors="replace")
    if check and process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{text[-3000:]}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


def snakemake(folder: Path, *words: str, check: bool = True) -> Cost:
    """Run Snakemake in a checkout."""
    return cost_of([sys.executable, "-m", "snakemake", "--cores", "1", *words], folder, check=check)


def load() -> float:
    """Return the machine's load over the last minute."""
    return os.getloadavg()[0]
