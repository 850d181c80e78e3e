"""One launch: a plan, a host, and the cells it leaves behind."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvroad.cells import cell_dir, keep_attempt, outcome_of, receipt_path, write_json
from kvroad.design import Cell, Design, Launch
from kvroad.engines.dynamo import dynamo_plan
from kvroad.engines.nixl import layout_of, replay_plan
from kvroad.engines.vllm import vllm_plan
from kvroad.errors import UserError
from kvroad.hosts import HostLost, RunningHost, open_host
from kvroad.hosts.slurm import job_id, placed
from kvroad.lost_hosts import lost_because, note_lost
from kvroad.plan import Plan
from kvroad.preflight import check_once
from kvroad.road import Outcome, judge_raw
from kvroad.study import Study

__all__ = [
    "Measurement",
    "end_of",
    "lay_down",
    "measure_launch",
    "measure_on_host",
    "owner_of",
    "plan_of",
    "settle",
    "write_receipt",
]

_PROGRESS_S = 5.0


@dataclass(frozen=True)
class Measurement:
    """What a launch is measured with.

    Parameters
    ----------
    host
        None where raw folders come from a host that only a person reaches.
    run_id
        One uninterrupted run of the workflow; pairs are built within one only.
    source_dir
        The checkout, whose git commit goes into each cell.
    say
        Takes a line of progress.
    """

    study: Study
    design: Design
    host: RunningHost | None
    results_dir: Path
    run_id: str
    source_dir: Path
    say: Callable[[str], None]


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
            if study.host.connection == "slurm":
                study = replace(study, host=placed(study.host))
            with closing(open_host(study.host)) as host:
                here = replace(with_, study=study, host=host)
                if study.host.connection == "slurm":
                    _check_nodes(here, host)
                return measure_launch(here, launch_id, attempt)
        except UserError as error:
            if not is_one_of_several:
                raise
            reason = str(error)
        note_lost(with_.results_dir, with_.run_id, name, reason)
        with_.say(f"host {name} failed and is left out of the rest of this run: {reason}")
    return _give_up(with_, with_.design.launch(launch_id), attempt, reason)


def _check_nodes(with_: Measurement, host: RunningHost) -> None:
    """Check what Slurm has given, once in a job: no earlier was it known."""
    number = job_id(with_.study.host)
    done = with_.results_dir / "runs" / f"{with_.run_id}-job-{number}.json"
    check_once(with_.study, with_.design, host, with_.results_dir, done, with_.say)


def _give_up(with_: Measurement, launch: Launch, attempt: int, reason: str) -> Path:
    for cell in [c for c in launch.cells if not _is_settled(with_, c, attempt)]:
        keep_attempt(with_.results_dir, cell.id)
        folder = cell_dir(with_.results_dir, cell.id)
        write_json(folder / "cell.json", _cell_facts(with_, launch, cell, attempt))
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


def plan_of(study: Study, launch: Launch, cells: list[Cell]) -> Plan:
    """Return the plan of a launch for the cells of it that are to be measured."""
    planner = {"dynamo": dynamo_plan, "vllm": vllm_plan}.get(launch.arm.engine.name, replay_plan)
    return planner(study, launch, cells, owner_of(study))


def owner_of(study: Study) -> str:
    """Return who asks for a launch, as others read it who find the host busy."""
    return f"{getpass.getuser()}@{platform.node()} study {study.name} in {Path.cwd()}"


def _is_settled(with_: Measurement, cell: Cell, attempt: int) -> bool:
    outcome = outcome_of(with_.results_dir, cell.id)
    if outcome is None:
        return False
    return outcome["outcome"] == "proven" or int(outcome["attempt"]) >= attempt


def _run(with_: Measurement, launch: Launch, cells: list[Cell], attempt: int) -> None:
    assert with_.host is not None
    plan = plan_of(with_.study, launch, cells)
    raw_dir = with_.results_dir / "launches" / launch.id / f"attempt-{attempt}-raw"
    progress = _Progress(with_, launch, cells)
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


def lay_down(
    with_: Measurement, launch: Launch, cell: Cell, raw_dir: Path, attempt: int, *, is_last: bool
) -> None:
    """Give a cell its raw folder; the cells of one launch share its files by hard links."""
    keep_attempt(with_.results_dir, cell.id)
    folder = cell_dir(with_.results_dir, cell.id)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "raw", ignore_errors=True)
    if is_last:
        os.replace(raw_dir, folder / "raw")
    else:
        shutil.copytree(raw_dir, folder / "raw", copy_function=os.link)
    write_json(folder / "cell.json", _cell_facts(with_, launch, cell, attempt))


def _cell_facts(with_: Measurement, launch: Launch, cell: Cell, attempt: int) -> dict[str, Any]:
    layout = layout_of(with_.study, launch, cell.prompt_tokens)
    return {
        "cell": cell.id,
        "identity": cell.identity,
        "arm": cell.arm,
        "transport": launch.arm.transport_name,
        "variant": launch.arm.variant_name,
        "prompt_tokens": cell.prompt_tokens,
        "block": cell.block,
        "launch": launch.id,
        "study": with_.study.name,
        "session": with_.study.session,
        "attempt": attempt,
        "kv_layout": {
            "descriptors": layout.n_descriptors,
            "descriptor_bytes": layout.descriptor_bytes,
            "bytes": layout.n_bytes,
        },
        "git": _git_state(with_.source_dir),
    }


def _git_state(source_dir: Path) -> dict[str, Any]:
    """Return commit and dirty flag of the checkout; None where it is none."""
    try:
        commit = _git(source_dir, "rev-parse", "HEAD")
        changes = _git(source_dir, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "is_dirty": None}
    return {"commit": commit, "is_dirty": bool(changes)}


def _git(source_dir: Path, *words: str) -> str:
    command = ["git", "-C", str(source_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


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
    with_.say(f"{_name(with_, cell)}: {outcome.outcome}: {outcome.reason}")


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
        write_json(folder / "cell.json", _cell_facts(with_, launch, cell, attempt))
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
        with_.say(f"{_name(with_, cell)}: {record['outcome']}: {record['reason']}")


def _name(with_: Measurement, cell: Cell) -> str:
    cells = with_.design.cells
    number = next(i for i, c in enumerate(cells, 1) if c.id == cell.id)
    where = f" on {cell.host}" if len({c.host for c in cells}) > 1 else ""
    return (
        f"[{number}/{len(cells)}] {cell.arm} {cell.prompt_tokens} tokens, block {cell.block}{where}"
    )


class _Progress:
    """Turns the agent's events into lines for the terminal, one every few seconds."""

    def __init__(self, with_: Measurement, launch: Launch, cells: list[Cell]) -> None:
        self._with = with_
        self._launch = launch
        self._cells = {c.id: c for c in cells}
        self._phase = ""
        self._pulls = 0
        self._last = 0.0

    def on_event(self, row: dict[str, Any]) -> None:
        """Take one event of the agent."""
        if row["event"] == "phase_start":
            is_first = row["phase"] == "warmup"
            self._phase, self._pulls = row["phase"], row["pulls"]
            if is_first:
                cell = self._cells[row["cell"]]
                self._with.say(f"{_name(self._with, cell)}{self._time_left()}")
        elif row["event"] == "progress" and time.monotonic() - self._last > _PROGRESS_S:
            self._last = time.monotonic()
            phase = self._phase.replace("_", " ")
            self._with.say(f"    {phase}: {row['done']} of {self._pulls} pulls")
        elif row["event"] == "reaped":
            what = "the host has booted since" if row.get("rebooted") else "ended what was left of"
            self._with.say(f"    {what} an earlier launch: {row['tag']}")
        elif row["event"] == "recovered":
            self._with.say(f"    fetched what an earlier run had left on host {row['host']}")

    def _time_left(self) -> str:
        """Estimate from the cells that this run has measured so far; empty at the first."""
        path = self._with.results_dir / "runs" / f"{self._with.run_id}.json"
        now = time.time()
        try:
            started, done_before = json.loads(path.read_text())
        except (OSError, ValueError):
            write_json(path, [now, self._n_settled()])
            return ""
        done = self._n_settled() - done_before
        if done <= 0:
            return ""
        left = len(self._with.design.cells) - self._n_settled()
        minutes = (now - started) / done * left / 60
        return f", about {max(1, round(minutes))} min left"

    def _n_settled(self) -> int:
        results = self._with.results_dir
        outcomes = (outcome_of(results, cell.id) for cell in self._with.design.cells)
        return sum(o is not None and o["outcome"] == "proven" for o in outcomes)
