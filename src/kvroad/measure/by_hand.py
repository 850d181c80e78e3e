"""Hosts without SSH: plans go out in one runnable file, raw folders come back in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from kvroad.agent.bundle import PLANS, STUDY
from kvroad.agent.manifest import MANIFEST, check_manifest
from kvroad.engines import plan_of
from kvroad.errors import UserError
from kvroad.evidence.events import end_of, read_events
from kvroad.files import write_atomic
from kvroad.hosts.agent_file import agent_bytes
from kvroad.measure.cell_folder import lay_down
from kvroad.measure.launch import settle, write_receipt
from kvroad.measure.measuring_run import MeasuringRun
from kvroad.measure.missing import is_open, missing_launches
from kvroad.plan import Plan, PlanError, dumps, essence, first_difference, loads
from kvroad.proof.judge import judge_cell
from kvroad.results import cell_dir, next_attempt, outcome_of
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study
from kvroad.study.sides import is_split

__all__ = ["ingest", "write_bundle"]


def write_bundle(
    study: Study, design: Design, results_dir: Path, words: list[str], path: Path
) -> int:
    """Write one runnable file with the plans of the missing launches; return their number.

    Raises
    ------
    UserError
        When nothing is missing, or the halves of a launch run on two hosts.
    """
    if study.hosts:
        names = ", ".join(host.name for host in study.hosts)
        raise UserError(f"a bundle is for one host; these are several: {names}")
    if is_split(study.host):
        raise UserError(
            f"host {study.host.name} is two hosts, which keep step through kvroad alone; "
            "a bundle needs both halves on one"
        )
    missing = missing_launches(study, design, results_dir)
    if not missing:
        raise UserError(f"nothing to bundle: every launch of {study.name} has been measured")
    extra = {
        f"{PLANS}/{number:05d}.json": dumps(plan_of(study, launch, cells))
        for number, (launch, cells) in enumerate(missing)
    }
    extra[STUDY] = json.dumps({"study": study.name, "words": words})
    try:
        data = agent_bytes("kvroad.agent.bundle", extra)
        write_atomic(path, lambda file: file.write_bytes(data))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return len(missing)


def ingest(run: MeasuringRun, folder: Path, say: Callable[[str], None]) -> tuple[int, int]:
    """Take raw folders in as if measured here; return how many were taken and refused.

    Raises
    ------
    UserError
        When there is no raw folder.
    """
    raw_dirs = sorted(path.parent for path in folder.glob(f"**/{MANIFEST}"))
    if not raw_dirs:
        raise UserError(f"{folder}: no raw folder in it (each has a {MANIFEST})")
    n_taken = n_refused = 0
    # In the order in which they were measured, as cells are listed.
    places = {launch.id: place for place, launch in enumerate(run.design.launches)}
    for raw_dir in sorted(raw_dirs, key=lambda path: places.get(path.name, len(places))):
        try:
            n_taken += _take(run, raw_dir, say)
        except UserError as refused:
            n_refused += 1
            say(f"refused: {refused}")
    return n_taken, n_refused


def _take(run: MeasuringRun, raw_dir: Path, say: Callable[[str], None]) -> int:
    """Take one raw folder in; 0 where its cells are here or it is not whole yet."""
    wrong = check_manifest(raw_dir)
    if wrong:
        raise UserError(f"{raw_dir}: {wrong}")
    plan = _read_plan(raw_dir)
    launch, cells = _match(run, plan, raw_dir)
    end = end_of(raw_dir)
    if end is None or end["status"] == "interrupted":
        say(f"{raw_dir}: was stopped before its end; run the file again on its host")
        return 0
    cells = [cell for cell in cells if _is_wanted(run.results_dir, cell, raw_dir)]
    if not cells:
        say(f"{raw_dir}: is here already")
        return 0
    attempt = next_attempt(run.results_dir, [c.id for c in launch.cells], "unproven")
    copy = run.results_dir / "launches" / launch.id / f"attempt-{attempt}-raw"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(raw_dir, copy)
    for cell in cells:
        lay_down(run, launch, cell, copy, attempt, is_last=cell is cells[-1])
        outcome = judge_cell(cell_dir(run.results_dir, cell.id), run.study.road)
        settle(run, cell, outcome, attempt, run_id=_run_id(raw_dir), measured_at=end["time"])
    write_receipt(run.results_dir, launch, attempt)
    return 1


def _read_plan(raw_dir: Path) -> Plan:
    try:
        return loads((raw_dir / "plan.json").read_text())
    except (OSError, PlanError) as error:
        raise UserError(f"{raw_dir}/plan.json: {error}") from error


def _match(run: MeasuringRun, plan: Plan, raw_dir: Path) -> tuple[Launch, list[Cell]]:
    """Return the launch of the study whose plan this is, and the cells that it measured."""
    try:
        launch = run.design.launch(plan.launch)
    except KeyError:
        raise UserError(
            f"{raw_dir}: launch {plan.launch} is not of study {run.study.name} as it is now; "
            "give the overrides that the bundle was made with"
        ) from None
    planned = {cell.cell for cell in plan.cells}
    cells = [cell for cell in launch.cells if cell.id in planned]
    difference = first_difference(essence(plan), essence(plan_of(run.study, launch, cells)))
    if difference:
        raise UserError(f"{raw_dir}: its plan is not the study's: {difference[:300]}")
    return launch, cells


def _is_wanted(results_dir: Path, cell: Cell, raw_dir: Path) -> bool:
    """Return whether a cell is open and this very folder was not taken in before."""
    if not is_open(outcome_of(results_dir, cell.id)):
        return False
    known = cell_dir(results_dir, cell.id) / "raw" / MANIFEST
    return not known.exists() or known.read_bytes() != (raw_dir / MANIFEST).read_bytes()


def _run_id(raw_dir: Path) -> str | None:
    return next((e.get("run_id") for e in read_events(raw_dir) if e["event"] == "launch"), None)
