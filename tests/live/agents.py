"""An agent of the tests, and the program that its plans start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvroad.agent.processes import TAG_VARIABLE
from kvroad.hosts import build_agent
from kvroad.plan import Claim, Command, File, Phase, Plan, PlannedCell, Process, dumps

# Against hanging alone, but where the limit itself is what a test waits for.
LONGEST_S = 300.0


# Of no other test run on this machine: what is left of a launch is found by it.
OWNER = f"test run {os.getpid()}"


ANOTHER = f"{OWNER}, another"


ENGINE = """
import json, os, signal, subprocess, sys, time
events = os.fdopen(int(sys.argv[1]), "w", buffering=1)
mode = sys.argv[2]
def send(event, **fields):
    events.write(json.dumps({"event": event, **fields}) + "\\n")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if mode == "silent":
    time.sleep(600)
if mode == "error":
    send("error", text="cannot start: no such device")
    sys.exit(3)
print("engine is up", os.environ.get("COLOUR"), flush=True)
send("ready", nixl="1.0", ports={"told": 4242})
for line in sys.stdin:
    if line.strip() == "quit":
        print("clean end", flush=True)
        break
    if mode == "crash":
        print("last words", flush=True)
        sys.exit(7)
    send("progress", done=1)
    if mode == "hang" or mode == "stubborn":
        time.sleep(600)
    send("phase_done", error="it went wrong" if mode == "fails" else None)
"""


def make_plan(mode: str, **changes: Any) -> Plan:
    command = Command(["engine"], {"phase": "warmup"}, "phase_done")
    limit_s = 2.0 if mode in ("hang", "stubborn") else LONGEST_S
    fields: dict[str, Any] = {
        "launch": "launch-1",
        "arm": "shm",
        "owner": OWNER,
        "claim": Claim("shm", ["cma"], "read", "DRAM", 8, {}, interfaces=["lo"]),
        "processes": [
            Process(
                "engine",
                ["{python}", "{folder}/engine.py", "{events}", mode],
                env={"COLOUR": "a, b='c' $(x) %"},
                ready_event="ready",
                ready_timeout_s=2.0 if mode == "silent" else LONGEST_S,
                stop_line="quit",
            )
        ],
        "cells": [PlannedCell("cell-1", 1, [Phase("warmup", command, timeout_s=limit_s)])],
        "files": [File("engine.py", ENGINE)],
        "stop_timeout_s": limit_s,
        "facts_from": "engine",
    }
    return Plan(**{**fields, **changes})


class Agent:
    def __init__(self, tmp_path: Path) -> None:
        self.work = tmp_path / "work"
        self.path = build_agent(tmp_path / "agent.pyz")
        self.folder = self.work / "launches" / "launch-1"

    def start(self, plan: Plan, *options: str) -> subprocess.Popen[str]:
        self.work.mkdir(exist_ok=True)
        path = self.work / "plan.json"
        path.write_text(dumps(plan))
        argv = [sys.executable, str(self.path), "--work-dir", str(self.work)]
        return subprocess.Popen(
            [*argv, "run", str(path), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, plan: Plan, *options: str) -> tuple[int, list[dict[str, Any]]]:
        process = self.start(plan, *options)
        out, _ = process.communicate(timeout=LONGEST_S)
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def left(self, plan: Plan) -> list[int]:
        """Return the live processes that carry the tag of any run of a plan."""
        return tagged(f"{plan.owner}:{plan.launch}:")


def tagged(beginning: str) -> list[int]:
    """Return the live processes whose tag begins so."""
    tag = f"{TAG_VARIABLE}={beginning}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if tag in environment:
            found.append(int(path.parts[2]))
    return found


def end_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(e for e in events if e["event"] == "end")


def wait_for(process: subprocess.Popen[str], event: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            return
    pytest.fail(f"no event {event}")
