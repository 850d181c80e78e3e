"""The folder of a measured cell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

from kvroad.engines import layout_of
from kvroad.files import write_json
from kvroad.measure.measuring_run import MeasuringRun
from kvroad.results import cell_dir, keep_attempt
from kvroad.study.design import Cell, Launch
from kvroad.study.identity import CellIdentity

__all__ = ["cell_facts", "lay_down"]


class GitState(TypedDict):
    """Commit of the checkout and whether it has changes; None where it is none."""

    commit: str | None
    is_dirty: bool | None


class CellFacts(TypedDict):
    """What ``cell.json`` holds; ``kv_layout`` maps descriptors, their bytes and all bytes."""

    cell: str
    identity: CellIdentity
    arm: str
    transport: str
    variant: str
    prompt_tokens: int
    block: int
    launch: str
    study: str
    session: str
    attempt: int
    kv_layout: dict[str, int]
    git: GitState


def lay_down(
    run: MeasuringRun, launch: Launch, cell: Cell, raw_dir: Path, attempt: int, *, is_last: bool
) -> None:
    """Give a cell its raw folder; the cells of one launch share its files by hard links."""
    keep_attempt(run.results_dir, cell.id)
    folder = cell_dir(run.results_dir, cell.id)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "raw", ignore_errors=True)
    if is_last:
        os.replace(raw_dir, folder / "raw")
    else:
        shutil.copytree(raw_dir, folder / "raw", copy_function=os.link)
    write_json(folder / "cell.json", cell_facts(run, launch, cell, attempt))


def cell_facts(run: MeasuringRun, launch: Launch, cell: Cell, attempt: int) -> CellFacts:
    """Return what ``cell.json`` holds: identity, planned KV layout, commit of the checkout."""
    layout = layout_of(run.study, launch, cell.prompt_tokens)
    return {
        "cell": cell.id,
        "identity": cell.identity,
        "arm": cell.arm,
        "transport": launch.arm.transport_name,
        "variant": launch.arm.variant_name,
        "prompt_tokens": cell.prompt_tokens,
        "block": cell.block,
        "launch": launch.id,
        "study": run.study.name,
        "session": run.study.session,
        "attempt": attempt,
        "kv_layout": {
            "descriptors": layout.n_descriptors,
            "descriptor_bytes": layout.descriptor_bytes,
            "bytes": layout.n_bytes,
        },
        "git": _git_state(run.source_dir),
    }


def _git_state(source_dir: Path) -> GitState:
    try:
        commit = _git(source_dir, "rev-parse", "HEAD")
        changes = _git(source_dir, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "is_dirty": None}
    return {"commit": commit, "is_dirty": bool(changes)}


def _git(source_dir: Path, *words: str) -> str:
    command = ["git", "-C", str(source_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
