"""Rebuild published reports from their raw files and compare the tables, byte for byte.

`uv run python tools/rebuild_published.py [FOLDER ...]`, all of `reports/published` by default.
Each is rebuilt in a copy of the tree of its own, without measuring. Prints a line per file that
differs, with the first difference; the exit status is 1 where there is one. About a minute each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "reports" / "published"
PARTS = ("Snakefile", "conf", "profiles", "src", "workflow")
# What is read by people or programs as text. Pictures of pixels and Parquet hold their writer's
# version; the page is made of the tables and figures that are compared.
TABLES = (".csv", ".json", ".md", ".svg")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Not MLflow's runs, which are no part of a report, and not the gate: some published studies
# have cells without a number, and fail it on purpose.
TARGET = ("all", "--until", "write_report")


def lay_down(published: Path, folder: Path) -> None:
    """Copy the tree into an empty folder and unpack the raw files there."""
    for part in PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
    raw = published / "raw.tar.xz"
    subprocess.run(["tar", "-xJf", str(raw), "-C", str(folder)], check=True)


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the workflow of the copy, with the environment of this program."""
    kept = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"}
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def differences(published: Path, folder: Path) -> Iterator[str]:
    """Rebuild a report in an empty folder; yield what differs, a line each."""
    lay_down(published, folder)
    overrides = json.loads((published / "study.json").read_text(encoding="utf-8"))["overrides"]
    words = (*TARGET, "--config", f"hydra={json.dumps(overrides)}")
    # The default profile leaves out the table of jobs, which says what would be measured.
    plan = snakemake(folder, *words, "--dry-run", "--quiet", "host")
    if to_measure := re.search(r"^measure_launch +(\d+)$", plan.stdout, re.MULTILINE):
        yield f"not rebuilt: launches that would be measured: {to_measure[1]}"
        return
    done = snakemake(folder, *words) if "\nJob stats:\n" in plan.stdout else plan
    if done.returncode or done is plan:
        yield f"cannot be rebuilt:\n{done.stdout}"
        return
    rebuilt = folder / "reports" / published.name
    names = {path.relative_to(top) for top in (published, rebuilt) for path in tables_of(top)}
    for name in sorted(names):
        if not (rebuilt / name).is_file():
            yield f"{name}: published, not rebuilt"
        elif not (published / name).is_file():
            yield f"{name}: rebuilt, not published"
        elif found := first_difference(published / name, rebuilt / name):
            yield f"{name}:{found}"


def tables_of(report: Path) -> list[Path]:
    """Return the tables of a report and its drawn figures."""
    return [p for p in report.rglob("*") if p.suffix in TABLES and p.name != "README.md"]


def first_difference(published: Path, rebuilt: Path) -> str:
    """Return the first line that differs, from where it does; empty where the bytes are equal."""
    before, after = published.read_bytes(), rebuilt.read_bytes()
    if before == after:
        return ""
    lines = zip_longest(before.split(b"\n"), after.split(b"\n"), fillvalue=b"")
    number, (old, new) = next((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
    column = next(
        (i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0
    )
    start = max(column - 20, 0)
    pieces = [line[start : start + 60].decode(errors="replace") for line in (old, new)]
    return f"{number}: {widest(before, after)}: published {pieces[0]!r}, rebuilt {pieces[1]!r}"


def widest(before: bytes, after: bytes) -> str:
    """Return by how much numbers differ where nothing else does."""
    if _NUMBER.sub(b"", before) != _NUMBER.sub(b"", after):
        return "more than numbers"
    pairs = zip(*(map(float, _NUMBER.findall(text)) for text in (before, after)), strict=True)
    share = max((abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b), default=0.0)
    return f"numbers alone, by {share:.1g} of their value at most"


def main(chosen: list[str]) -> int:
    """Rebuild each; 1 where a file differs."""
    reports = [Path(name).resolve() for name in chosen]
    reports = reports or sorted(path.parent for path in PUBLISHED.glob("*/raw.tar.xz"))
    if lacking := [str(path) for path in reports if not (path / "raw.tar.xz").is_file()]:
        sys.exit(f"error: no published report, without raw.tar.xz: {', '.join(lacking)}")
    status = 0
    for published in reports:
        with tempfile.TemporaryDirectory(prefix="kvroad-rebuild-") as name:
            found = list(differences(published, Path(name)))
        print(f"{published.name}: {f'{len(found)} differ' if found else 'the same'}", flush=True)
        for line in found:
            print(f"  {line}", flush=True)
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
