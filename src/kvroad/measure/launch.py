"""One launch: a plan, a host, and the cells it leaves behind."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from kvroad.engines import plan_of
from kvroad.errors import UserError
from kvroad.evidence.events import end_of
from kvroad.files import utc_now, write_json
from kvroad.hosts import HostLost, RunningHost, open_host
from kvroad.measure.cell_folder import cell_facts, lay_down
from kvroad.measure.lost_hosts import lost_because, note_lost
from kvroad.measure.measuring_run import MeasuringRun, cell_name
from kvroad.measure.preflight import check_once
from kvroad.measure.progress import Progress
from kvroad.proof.judge import judge_cell, judge_raw
from kvroad.proof.witness import Outcome
from kvroad.results import CellOutcome, cell_dir, keep_attempt, outcome_of, receipt_path
from kvroad.study.design import Cell, Launch
from kvroad.study.kinds import CONNECTIONS

__all__ = ["measure_launch", "measure_on_host", "settle", "write_receipt"]


def measure_launch(run: MeasuringRun, launch_id: str, attempt: int) -> Path:
    """Measure the cells of a launch that are not proven yet and return its receipt.

    Raises
    ------
    HostLost
        When the host went away; what was measured before stays.
    UserError
        When the host is busy.
    """
    launch = run.design.launch(launch_id)
    open_cells = [c for c in launch.cells if not _is_settled(run, c, attempt)]
    if open_cells:
        known = _refused_arm(run, launch)
        if known is not None:
            _repeat_refusal(run, launch, open_cells, known, attempt)
        else:
            _run_plan(run, launch, open_cells, attempt)
    return write_receipt(run.results_dir, launch, attempt)


def measure_on_host(
    run: MeasuringRun, launch_id: str, attempt: int, *, is_one_of_several: bool
) -> Path:
    """Open the study's host, measure a launch there and return its receipt.

    One of several hosts that fails is left alone for the rest of the run: the open cells of
    its launches fail, and the next run measures them as another attempt.

    Raises
    ------
    UserError
        When the one host there is fails, or is busy.
    """
    name, reason = run.study.host.name, None
    if is_one_of_several:
        reason = lost_because(run.results_dir, run.run_id, name)
    if reason is None:
        try:
            study = run.study
            allocate = CONNECTIONS[study.host.connection].allocate
            allocation = allocate(study.host) if allocate else None
            if allocation:
                study = replace(study, host=allocation.host)
            with closing(open_host(study.host)) as host:
                here = replace(run, study=study, host=host)
                if allocation:
                    _check_nodes(here, host, allocation.job)
                return measure_launch(here, launch_id, attempt)
        except UserError as error:
            if not is_one_of_several:
                raise
            reason = str(error)
        note_lost(run.results_dir, run.run_id, name, reason)
        run.say(f"host {name} failed and is left out of the rest of this run: {reason}")
    return _give_up(run, run.design.launch(launch_id), attempt, reason)


def _check_nodes(run: MeasuringRun, host: RunningHost, job: str) -> None:
    """Check the nodes that a job has got, once in it: no earlier were they known."""
    done = run.results_dir / "runs" / f"{run.run_id}-job-{job}.json"
    check_once(run.study, run.design, host, run.results_dir, done, run.say)


def _give_up(run: MeasuringRun, launch: Launch, attempt: int, reason: str) -> Path:
    for cell in [c for c in launch.cells if not _is_settled(run, c, attempt)]:
        keep_attempt(run.results_dir, cell.id)
        folder = cell_dir(run.results_dir, cell.id)
        write_json(folder / "cell.json", cell_facts(run, launch, cell, attempt))
        expected = list(launch.arm.transport.roads)
        text = f"host {launch.host} failed, its unfinished blocks are lost: {reason}"
        lost = Outcome("failed", text, expected, "unknown", "", "", False, ())
        settle(run, cell, lost, attempt)
    return write_receipt(run.results_dir, launch, attempt)


def write_receipt(results_dir: Path, launch: Launch, attempt: int) -> Path:
    """Write that a launch was dealt with, and how its cells stand."""
    found = {cell.id: outcome_of(results_dir, cell.id) for cell in launch.cells}
    outcomes = {cell: outcome and outcome["outcome"] for cell, outcome in found.items()}
    receipt = receipt_path(results_dir, launch.id, attempt)
    write_json(receipt, {"launch": launch.id, "attempt": attempt, "cells": outcomes})
    return receipt


def _is_settled(run: MeasuringRun, cell: Cell, attempt: int) -> bool:
    outcome = outcome_of(run.results_dir, cell.id)
    if outcome is None:
        return False
    return outcome["outcome"] == "proven" or int(outcome["attempt"]) >= attempt


def _run_plan(run: MeasuringRun, launch: Launch, cells: list[Cell], attempt: int) -> None:
    assert run.host is not None
    plan = plan_of(run.study, launch, cells)
    raw_dir = run.results_dir / "launches" / launch.id / f"attempt-{attempt}-raw"
    progress = Progress(run, launch, cells)
    run.host.run(plan, raw_dir, progress.on_event)
    end = end_of(raw_dir)
    if end is not None and end["status"] == "interrupted":
        _keep_proven(run, launch, cells, raw_dir, attempt)
        raise HostLost(f"host {run.study.host.name}: the launch was ended: {end.get('reason')}")
    for cell in cells:
        lay_down(run, launch, cell, raw_dir, attempt, is_last=cell is cells[-1])
        outcome = judge_cell(cell_dir(run.results_dir, cell.id), run.study.road)
        settle(run, cell, outcome, attempt)


def _keep_proven(
    run: MeasuringRun, launch: Launch, cells: list[Cell], raw_dir: Path, attempt: int
) -> None:
    """Keep the cells that were finished and proven before their launch was ended."""
    for cell in cells:
        outcome = judge_raw(raw_dir, run.study.road, cell.id)
        if len(cells) > 1 and outcome.outcome == "proven":
            lay_down(run, launch, cell, raw_dir, attempt, is_last=False)
            settle(run, cell, outcome, attempt)
    shutil.rmtree(raw_dir)


def settle(
    run: MeasuringRun,
    cell: Cell,
    outcome: Outcome,
    attempt: int,
    *,
    run_id: str | None = None,
    measured_at: str | None = None,
) -> None:
    """Write a cell's outcome; run and time are this run and now unless given."""
    record = {
        **asdict(outcome),
        "attempt": attempt,
        "run_id": run_id or run.run_id,
        "measured_at": measured_at or utc_now(),
    }
    write_json(cell_dir(run.results_dir, cell.id) / "outcome.json", record)
    run.say(f"{cell_name(run, cell)}: {outcome.outcome}: {outcome.reason}")


def _refused_arm(run: MeasuringRun, launch: Launch) -> tuple[str, CellOutcome] | None:
    """Return a cell of this arm whose outcome in this run every further launch would repeat."""
    for cell in run.design.cells:
        if (cell.arm, cell.host) != (launch.arm.label, launch.host):
            continue
        outcome = outcome_of(run.results_dir, cell.id)
        if outcome and outcome.get("run_id") == run.run_id and outcome.get("repeats"):
            return cell.id, outcome
    return None


def _repeat_refusal(
    run: MeasuringRun,
    launch: Launch,
    cells: list[Cell],
    refused: tuple[str, CellOutcome],
    attempt: int,
) -> None:
    """Give cells the outcome that a cell of their arm had, without a launch."""
    first, outcome = refused
    reason = outcome["reason"].split(" (as in ", 1)[0]
    record: CellOutcome = {
        **outcome,
        "witnesses": [],
        "reason": f"{reason} (as in {first}; not launched again in this run)",
        "attempt": attempt,
        "measured_at": utc_now(),
    }
    for cell in cells:
        keep_attempt(run.results_dir, cell.id)
        folder = cell_dir(run.results_dir, cell.id)
        write_json(folder / "cell.json", cell_facts(run, launch, cell, attempt))
        write_json(folder / "outcome.json", record)
        run.say(f"{cell_name(run, cell)}: {record['outcome']}: {record['reason']}")
