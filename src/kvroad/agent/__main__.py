"""Command line of the host agent; JSON events on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kvroad.agent.clean import forget, launch_folder, reap, stop
from kvroad.agent.events import Events
from kvroad.agent.exits import BUSY, DATA, IO, LEFT_BEHIND, OK
from kvroad.agent.lease import Lease
from kvroad.agent.lock import HostBusy, HostLock
from kvroad.agent.processes import become_subreaper
from kvroad.agent.run_plan import make_raw_folder
from kvroad.agent.survey import survey
from kvroad.plan import Plan, PlanError, loads

__all__ = ["main", "run_and_exit"]


def main(argv: list[str] | None = None) -> int:
    """Run one command of the agent and return its exit status."""
    arguments = _parser().parse_args(argv)
    work_dir: Path = arguments.work_dir
    if arguments.command == "facts":
        print(json.dumps(survey(work_dir, arguments.ports)))
        return OK
    events = Events()
    try:
        return _command(arguments, work_dir, events)
    except HostBusy as busy:
        events.send("busy", holder=busy.holder)
        return BUSY
    except OSError as error:
        events.send("end", status="failed", step="host", reason=str(error), keep=False)
        return IO
    finally:
        events.flush()


def _command(arguments: argparse.Namespace, work_dir: Path, events: Events) -> int:
    if arguments.command == "forget":
        forget(work_dir, arguments.launch)
        return OK
    if arguments.command == "stop":
        return LEFT_BEHIND if stop(work_dir, arguments.owner, events) else OK
    if arguments.command == "reap":
        with HostLock(work_dir / "lock", "reap", arguments.lock_timeout_s):
            return LEFT_BEHIND if reap(work_dir, events) else OK
    return _run(arguments, work_dir, events)


def _run(arguments: argparse.Namespace, work_dir: Path, events: Events) -> int:
    try:
        plan = _read_plan(arguments.plan)
    except (OSError, UnicodeDecodeError, PlanError) as error:
        events.send("end", status="failed", step="plan", reason=str(error))
        return DATA
    lease = Lease(arguments.lease_s or None)
    lease.watch_signals()
    if arguments.lease_s:
        lease.watch_stdin()
    become_subreaper()
    with HostLock(
        work_dir / "lock", plan.owner, arguments.lock_timeout_s, stop_reason=lease.stop_reason
    ):
        if reap(work_dir, events):
            return LEFT_BEHIND
        folder = launch_folder(work_dir, plan.launch)
        return make_raw_folder(plan, folder, work_dir, events, lease, is_relayed=arguments.relayed)


def _read_plan(path: str) -> Plan:
    # A plan that comes as the first line of the input leaves no file behind.
    return loads(sys.stdin.readline() if path == "-" else Path(path).read_text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description="Run a plan on this host.")
    parser.add_argument("--work-dir", type=Path, required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a plan and leave a raw folder below launches")
    run.add_argument("plan", help="file; '-': the first line of standard input")
    run.add_argument("--lease-s", type=float, default=0.0, help="0: nobody sends heartbeats")
    run.add_argument("--lock-timeout-s", type=float, default=0.0)
    run.add_argument("--relayed", action="store_true", help="wait for commands on the input")
    reap = commands.add_parser("reap", help="end what an earlier launch of this work folder left")
    reap.add_argument("--lock-timeout-s", type=float, default=0.0)
    stop = commands.add_parser("stop", help="end the running launch of an owner and what it left")
    stop.add_argument("--owner", required=True)
    forget = commands.add_parser("forget", help="remove the raw folder of a launch")
    forget.add_argument("launch")
    facts = commands.add_parser("facts", help="print the facts of this host")
    facts.add_argument("--ports", type=_ports, default=[], help="say who holds these")
    return parser


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",") if port]


def run_and_exit() -> None:
    """Entry point of the zipapp: the exit status is the command's."""
    sys.exit(main())


if __name__ == "__main__":
    run_and_exit()
