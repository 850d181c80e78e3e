"""One launch from plan to raw folder: whatever happens, it ends with an event and a manifest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from kvroad.agent.events import Events
from kvroad.agent.exits import IO, LEFT_BEHIND, OK
from kvroad.agent.facts import host_facts
from kvroad.agent.lease import Lease
from kvroad.agent.manifest import write_manifest
from kvroad.agent.relay import relay
from kvroad.agent.run import Run, StepFailed, Stopped
from kvroad.evidence.redact import redact_env, redact_text
from kvroad.plan import Plan, dumps

__all__ = ["make_raw_folder"]


def make_raw_folder(
    plan: Plan,
    target: Path,
    work_dir: Path,
    events: Events,
    lease: Lease,
    *,
    is_relayed: bool = False,
    run_id: str | None = None,
) -> int:
    """Run a plan, leave the raw folder ``target`` and return the agent's exit status.

    Parameters
    ----------
    is_relayed
        The phases begin and end on commands from the input, not one after the other.
    run_id
        The uninterrupted run that the launch belongs to, where no client keeps it.
    """
    folder = target.with_name(target.name + ".partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    events.open(folder / "events.jsonl")
    facts = host_facts(plan.packages)
    events.send("launch", launch=plan.launch, boot_id=facts["boot_id"], run_id=run_id)
    ledger = work_dir / "ledger" / f"{os.getpid()}.json"
    run = Run(plan, folder, ledger, facts["boot_id"], events, lease)
    status, step, reason = "complete", "", ""
    try:
        (folder / "plan.json").write_text(_redacted(plan))
        if is_relayed:
            relay(run)
        else:
            run.run()
    except StepFailed as failed:
        status, step, reason = "failed", failed.step, failed.reason
        if failed.step == "road":
            status = "stopped"
    except Stopped as stopped:
        status, step, reason = "interrupted", "stop", str(stopped)
    except OSError as error:
        status, step, reason = "failed", "host", str(error)
    survivors = run.end(is_clean=status != "interrupted")
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
        events.close()
        # What is not whole is of no use, and it may be what fills the disk.
        shutil.rmtree(folder, ignore_errors=True)
        events.send("end", status="failed", step="host", reason=str(error), keep=False)
        return IO
    events.send("folder", path=str(target), keep=False)
    return LEFT_BEHIND if survivors else OK


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
