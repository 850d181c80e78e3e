"""Command line of the host agent; JSON events on standard output."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from kvroad.agent.events import Events
from kvroad.agent.facts import host_facts
from kvroad.agent.launch import Launch, StepFailed, Stopped
from kvroad.agent.lease import Lease
from kvroad.agent.lock import HostBusy, HostLock
from kvroad.agent.manifest import write_manifest
from kvroad.agent.processes import Ledger, become_subreaper, end_processes
from kvroad.evidence.redact import redact_env, redact_text
from kvroad.plan import Plan, PlanError, dumps, loads

__all__ = ["main", "run_and_exit"]

EXIT_BUSY = 75  # EX_TEMPFAIL of sysexits.h
EXIT_LEFT_BEHIND = 70  # EX_SOFTWARE
EXIT_DATA = 65  # EX_DATAERR
EXIT_IO = 74  # EX_IOERR


def main(argv: list[str] | None = None) -> int:
    """Run one command of the agent and return its exit status."""
    arguments = _parser().parse_args(argv)
    work_dir: Path = arguments.work_dir
    events = Events()
    if arguments.command == "facts":
        print(json.dumps(host_facts()))
        return 0
    if arguments.command == "reap":
        left = reap(work_dir, events)
        return EXIT_LEFT_BEHIND if left else 0
    try:
        plan = loads(arguments.plan.read_text())
    except (OSError, PlanError) as error:
        events.send("end", status="failed", step="plan", reason=str(error))
        return EXIT_DATA
    lease = Lease(arguments.lease_s or None)
    lease.watch_signals()
    if arguments.lease_s:
        lease.watch_stdin()
    become_subreaper()
    try:
        with HostLock(work_dir / "lock", plan.owner, arguments.lock_timeout_s):
            if reap(work_dir, events):
                return EXIT_LEFT_BEHIND
            return _run(plan, arguments.folder, work_dir, events, lease)
    except HostBusy as busy:
        events.send("busy", holder=busy.holder)
        return EXIT_BUSY


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description="Run a plan on this host.")
    parser.add_argument("--work-dir", type=Path, required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a plan and leave a raw folder")
    run.add_argument("plan", type=Path)
    run.add_argument("folder", type=Path, help="the raw folder to make")
    run.add_argument("--lease-s", type=float, default=0.0, help="0: nobody sends heartbeats")
    run.add_argument("--lock-timeout-s", type=float, default=0.0)
    commands.add_parser("reap", help="end what an earlier launch of this work folder left")
    commands.add_parser("facts", help="print the facts of this host")
    return parser


def reap(work_dir: Path, events: Events) -> list[int]:
    """End what a killed agent left running; touches only what its ledgers name as ours."""
    left: list[int] = []
    for path in sorted((work_dir / "ledger").glob("*.json")):
        ledger = Ledger.read(path)
        if ledger is None:
            path.unlink(missing_ok=True)
            continue
        survivors = end_processes(ledger.tag, ledger.entries, None, grace_s=5.0)
        events.send("reaped", tag=ledger.tag, left=[s.pid for s in survivors])
        if survivors:
            left += [s.pid for s in survivors]
        else:
            path.unlink(missing_ok=True)
    return left


def _run(plan: Plan, target: Path, work_dir: Path, events: Events, lease: Lease) -> int:
    folder = target.with_name(target.name + ".partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    events.open(folder / "events.jsonl")
    facts = host_facts()
    events.send("launch", launch=plan.launch, boot_id=facts["boot_id"])
    launch = Launch(plan, folder, work_dir, events, lease)
    status, step, reason = "complete", "", ""
    try:
        (folder / "plan.json").write_text(_redacted(plan))
        launch.run()
    except StepFailed as failed:
        status, step, reason = "failed", failed.step, failed.reason
        if failed.step == "road":
            status = "stopped"
    except Stopped as stopped:
        status, step, reason = "interrupted", "stop", str(stopped)
    except OSError as error:
        status, step, reason = "failed", "host", str(error)
    survivors = launch.end(is_clean=status != "interrupted")
    if survivors:
        status, step, reason = "failed", "stop", f"processes {survivors} could not be ended"
    try:
        (folder / "facts.json").write_text(json.dumps({**facts, "versions": _versions(folder)}))
        events.send("end", status=status, step=step, reason=redact_text(reason))
        events.close()
        write_manifest(folder)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(folder, target)
    except OSError as error:
        events.send("end", status="failed", step="host", reason=str(error), keep=False)
        return EXIT_IO
    events.send("folder", path=str(target), keep=False)
    return EXIT_LEFT_BEHIND if survivors else 0


def _redacted(plan: Plan) -> str:
    data = json.loads(dumps(plan))
    data["claim"]["environment"] = redact_env(data["claim"]["environment"])
    for process in data["processes"]:
        process["env"] = redact_env(process["env"])
    return json.dumps(data, indent=1, sort_keys=True)


def _versions(folder: Path) -> dict[str, object]:
    try:
        data = json.loads((folder / "versions.json").read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def run_and_exit() -> None:
    """Entry point of the zipapp: the exit status is the command's."""
    sys.exit(main())


if __name__ == "__main__":
    run_and_exit()
