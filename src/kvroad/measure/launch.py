"""One launch: a plan, a host, and the cells it leaves behind."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvroad.engines import plan_of
from kvroad.errors import UserError
from kvroad.files import write_json
from kvroad.hosts import HostLost, RunningHost, open_host
from kvroad.measure.cell_folder import cell_facts, lay_down
from kvroad.measure.lost_hosts import lost_because, note_lost
from kvroad.measure.measurement import Measurement, cell_name
from kvroad.measure.preflight import check_once
from kvroad.measure.progress import Progress
from kvroad.proof.judge import judge_raw
from kvroad.proof.witness import Outcome
from kvroad.results import cell_dir, keep_attempt, outcome_of, receipt_path
from kvroad.study.design import Cell, Launch
from kvroad.study.kinds import CONNECTIONS

__all__ = ["end_of", "measure_launch", "measure_on_host", "settle", "write_receipt"]


def measure_launch(with_: Measurement, launch_id: str, attempt: int) -> Path:
    """Measure the cells of a launch that are not proven yet and return its receipt.

    Raises
    ------
    HostLost
        When the host went away; what was measured before stays.
    UserError
        When the host is busy.
    """
    launch = with_.design.launch(launch_id)
    open_cells = [c for c in launch.cells if not _is_settled(with_, c, attempt)]
    if open_cells:
        known = _refused_arm(with_, launch)
        if known is not None:
            _repeat_refusal(with_, launch, open_cells, known, attempt)
        else:
            _run(with_, launch, open_cells, attempt)
    return write_receipt(with_.results_dir, launch, attempt)


def measure_on_host(
    with_: Measurement, launch_id: str, attempt: int, *, is_one_of_several: bool
) -> Path:
    """Open the study's host, measure a launch there and return its receipt.

    One of several hosts that fails is left alone for the rest of the run: the open cells of
    its launches fail, and the next run measures them as another attempt.

    Raises
    ------
    UserError
        When the one host there is fails, or is busy.
    """
    name, reason = with_.study.host.name, None
    if is_one_of_several:
        reason = lost_because(with_.results_dir, with_.run_id, name)
    if reason is None:
        try:
            study = with_.study
            allocate = CONNECTIONS[study.host.connection].allocate
            allocation = allocate(study.host) if allocate else None
            if allocation:
                study = replace(study, host=allocation.host)
            with closing(open_host(study.host)) as host:
                here = replace(with_, study=study, host=host)
                if allocation:
                    _check_nodes(here, host, allocation.job)
                return measure_launch(here, launch_id, attempt)
        except UserError as error:
            if not is_one_of_several:
                raise
            reason = str(error)
        note_lost(with_.results_dir, with_.run_id, name, reason)
        with_.say(f"host {name} failed and is left out of the rest of this run: {reason}")
    return _give_up(with_, with_.design.launch(launch_id), attempt, reason)


def _check_nodes(with_: Measurement, host: RunningHost, job: str) -> None:
    """Check the nodes that a job has got, once in it: no earlier were they known."""
    done = with_.results_dir / "runs" / f"{with_.run_id}-job-{job}.json"
    check_once(with_.study, with_.design, host, with_.results_dir, done, with_.say)


def _give_up(with_: Measurement, launch: Launch, attempt: int, reason: str) -> Path:
    for cell in [c for c in launch.cells if not _is_settled(with_, c, attempt)]:
        keep_attempt(with_.results_dir, cell.id)
        folder = cell_dir(with_.results_dir, cell.id)
        write_json(folder / "cell.json", cell_facts(with_, launch, cell, attempt))
        expected = list(launch.arm.transport.roads)
        text = f"host {launch.host} failed, its unfinished blocks are lost: {reason}"
        lost = Outcome("failed", text, expected, "unknown", "", "", False, ())
        settle(with_, cell, lost, attempt)
    return write_receipt(with_.results_dir, launch, attempt)


def write_receipt(results_dir: Path, launch: Launch, attempt: int) -> Path:
    """Write that a launch was dealt with, and how its cells stand."""
    found = {cell.id: outcome_of(results_dir, cell.id) for cell in launch.cells}
    outcomes = {cell: outcome and outcome["outcome"] for cell, outcome in found.items()}
    receipt = receipt_path(results_dir, launch.id, attempt)
    write_json(receipt, {"launch": launch.id, "attempt": attempt, "cells": outcomes})
    return receipt


def _is_settled(with_: Measurement, cell: Cell, attempt: int) -> bool:
    outcome = outcome_of(with_.results_dir, cell.id)
    if outcome is None:
        return False
    return outcome["outcome"] == "proven" or int(outcome["attempt"]) >= attempt


def _run(with_: Measurement, launch: Launch, cells: list[Cell], attempt: int) -> None:
    assert with_.host is not None
    plan = plan_of(with_.study, launch, cells)
    raw_dir = with_.results_dir / "launches" / launch.id / f"attempt-{attempt}-raw"
    progress = Progress(with_, launch, cells)
    with_.host.run(plan, raw_dir, progress.on_event)
    end = end_of(raw_dir)
    if end.get("status") == "interrupted":
        _keep_proven(with_, launch, cells, raw_dir, attempt)
        raise HostLost(f"host {with_.study.host.name}: the launch was ended: {end.get('reason')}")
    for cell in cells:
        lay_down(with_, launch, cell, raw_dir, attempt, is_last=cell is cells[-1])
        raw = cell_dir(with_.results_dir, cell.id) / "raw"
        settle(with_, cell, judge_raw(raw, with_.study.road, cell.id), attempt)


def _keep_proven(
    with_: Measurement, launch: Launch, cells: list[Cell], raw_dir: Path, attempt: int
) -> None:
    """Keep the cells that were finished and proven before their launch was ended."""
    for cell in cells:
        outcome = judge_raw(raw_dir, with_.study.road, cell.id)
        if len(cells) > 1 and outcome.outcome == "proven":
            lay_down(with_, launch, cell, raw_dir, attempt, is_last=False)
            settle(with_, cell, outcome, attempt)
    shutil.rmtree(raw_dir)


def end_of(raw_dir: Path) -> dict[str, Any]:
    """Return the event that ended a launch, nothing where there is none."""
    rows = [json.loads(line) for line in (raw_dir / "events.jsonl").read_text().splitlines()]
    ends = [row for row in rows if row["event"] == "end"]
    return ends[-1] if ends else {}


def settle(
    with_: Measurement,
    cell: Cell,
    outcome: Outcome,
    attempt: int,
    *,
    run_id: str | None = None,
    measured_at: str | None = None,
) -> None:
    """Write a cell's outcome; run and time are this run and now unless told."""
    record = {
        **asdict(outcome),
        "attempt": attempt,
        "run_id": run_id or with_.run_id,
        "measured_at": measured_at or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_json(cell_dir(with_.results_dir, cell.id) / "outcome.json", record)
    with_.say(f"{cell_name(with_, cell)}: {outcome.outcome}: {outcome.reason}")


def _refused_arm(with_: Measurement, launch: Launch) -> dict[str, Any] | None:
    """Return an outcome of this arm in this run that every further launch would repeat."""
    for cell in with_.design.cells:
        if (cell.arm, cell.host) != (launch.arm.label, launch.host):
            continue
        outcome = outcome_of(with_.results_dir, cell.id)
        if outcome and outcome.get("run_id") == with_.run_id and outcome.get("repeats"):
            return {**outcome, "cell": cell.id}
    return None


def _repeat_refusal(
    with_: Measurement, launch: Launch, cells: list[Cell], known: dict[str, Any], attempt: int
) -> None:
    for cell in cells:
        keep_attempt(with_.results_dir, cell.id)
        folder = cell_dir(with_.results_dir, cell.id)
        write_json(folder / "cell.json", cell_facts(with_, launch, cell, attempt))
        fields = {k: v for k, v in known.items() if k not in ("cell", "witnesses")}
        reason = known["reason"].split(" (as in ", 1)[0]
        record = {
            **fields,
            "witnesses": [],
            "reason": f"{reason} (as in {known['cell']}; not launched again in this run)",
            "attempt": attempt,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_json(folder / "outcome.json", record)
        with_.say(f"{cell_name(with_, cell)}: {record['outcome']}: {record['reason']}")
