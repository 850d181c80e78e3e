"""The agent with plans in its own archive, run by hand or in a batch job: no client, no SSH."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import uuid
import zipfile
from pathlib import Path

from kvroad.agent.clean import reap
from kvroad.agent.events import Events
from kvroad.agent.exits import BUSY, IO, LEFT_BEHIND, OK
from kvroad.agent.lease import Lease
from kvroad.agent.lock import HostBusy, HostLock
from kvroad.agent.manifest import MANIFEST
from kvroad.agent.processes import become_subreaper
from kvroad.agent.run_plan import make_raw_folder
from kvroad.evidence.events import AgentEvent, end_of
from kvroad.plan import Plan, loads

__all__ = ["PLANS", "STUDY", "main", "run_and_exit"]

PLANS = "plans"
STUDY = "study.json"
_INTERRUPTED = 130  # as a shell says of SIGINT


def main(argv: list[str] | None = None) -> int:
    """Run every launch that has no raw folder yet and return the exit status."""
    parser = argparse.ArgumentParser(description="Run the launches in this file, in their order.")
    parser.add_argument("output_dir", type=Path, help="gets one raw folder for each launch")
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path("~/.kvroad").expanduser(),
        help="where the lock of this host is (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    plans, study = _contents(Path(sys.argv[0]))
    work_dir = arguments.work_dir / platform.node()
    lease = Lease(None)
    lease.watch_signals()
    become_subreaper()
    events = Events(os.open(os.devnull, os.O_WRONLY))
    try:
        arguments.output_dir.mkdir(parents=True, exist_ok=True)
        with HostLock(work_dir / "lock", plans[0].owner, 0.0):
            if reap(work_dir, events):
                return _say("an earlier launch could not be ended", LEFT_BEHIND)
            status = _run(plans, arguments.output_dir, work_dir, lease)
    except HostBusy as busy:
        return _say(f"this host is busy: {json.dumps(busy.holder)}", BUSY)
    except OSError as error:
        return _say(str(error), IO)
    if status == OK:
        words = shlex.join([str(arguments.output_dir), *study["words"]])
        _say(f"all launches are done; where the study is: kvroad ingest {words}", OK)
    return status


def _contents(archive: Path) -> tuple[list[Plan], dict[str, list[str]]]:
    with zipfile.ZipFile(archive) as file:
        names = sorted(n for n in file.namelist() if n.startswith(f"{PLANS}/"))
        plans = [loads(file.read(name).decode()) for name in names]
        study: dict[str, list[str]] = json.loads(file.read(STUDY))
    return plans, study


def _run(plans: list[Plan], output_dir: Path, work_dir: Path, lease: Lease) -> int:
    run_id = uuid.uuid4().hex
    for number, plan in enumerate(plans, 1):
        folder = output_dir / plan.launch
        name = f"[{number}/{len(plans)}] {plan.launch}"
        end = _end_of(folder)
        if end and end["status"] != "interrupted":
            _say(f"{name}: is there", OK)
            continue
        print(name, file=sys.stderr, flush=True)
        events = Events(os.open(os.devnull, os.O_WRONLY))
        status = make_raw_folder(plan, folder, work_dir, events, lease, run_id=run_id)
        events.flush()
        end = _end_of(folder)
        how = f"{end['status']} {end['reason']}".rstrip() if end else "no raw folder"
        _say(f"{name}: {how}", OK)
        if status != OK:
            return status
        if end and end["status"] == "interrupted":
            return _say("stopped; the same command goes on from here", _INTERRUPTED)
    return OK


def _end_of(folder: Path) -> AgentEvent | None:
    """Return how the launch of a whole raw folder ended, None for any other."""
    return end_of(folder) if (folder / MANIFEST).exists() else None


def _say(line: str, status: int) -> int:
    print(line, file=sys.stderr, flush=True)
    return status


def run_and_exit() -> None:
    """Entry point of the archive: the exit status is the command's."""
    sys.exit(main())
