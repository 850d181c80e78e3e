"""The agent with a small real program in place of an engine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from agents import ANOTHER, LONGEST_S, OWNER, Agent, end_of, make_plan, tagged, wait_for

from kvroad.agent.manifest import check_manifest
from kvroad.plan import Claim, Command, File, Phase, Plan, PlannedCell, Process


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    yield Agent(tmp_path)
    # What a failing test leaves; an agent ends with its engine.
    for pid in tagged(OWNER):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_launch_leaves_a_whole_raw_folder(agent: Agent) -> None:
    returncode, events = agent.run(make_plan("good"))
    assert returncode == 0
    assert end_of(events)["status"] == "complete"
    assert check_manifest(agent.folder) is None
    # A value with blanks, commas, quotes and shell characters arrives as it is.
    assert (agent.folder / "engine.log").read_text() == (
        "engine is up a, b='c' $(x) %\nclean end\n"
    )
    edges = [json.loads(x) for x in (agent.folder / "counters.jsonl").read_text().splitlines()]
    assert [e["edge"] for e in edges] == ["warmup:start", "warmup:end"]
    assert edges[0]["net"]["lo"]["rx_bytes"] >= 0
    assert edges[0]["mono_ns"] < edges[1]["mono_ns"]
    facts = json.loads((agent.folder / "facts.json").read_text())
    assert facts["boot_id"]
    assert {e["event"] for e in events} >= {"launch", "start", "ready", "progress", "exit", "end"}


@pytest.mark.parametrize(
    ("mode", "step", "reason"),
    [
        ("silent", "start engine", "no answer from engine within 2 s"),
        ("error", "start engine", "cannot start: no such device"),
        ("crash", "warmup", "engine ended with status 7: .*last words"),
        ("fails", "warmup in engine", "it went wrong"),
        ("hang", "warmup", "no answer from engine within 2 s"),
        ("stubborn", "warmup", "no answer from engine within 2 s"),
    ],
)
def test_a_failing_step_is_named_and_nothing_is_left(
    agent: Agent, mode: str, step: str, reason: str
) -> None:
    plan = make_plan(mode)
    returncode, events = agent.run(plan)
    end = end_of(events)
    assert returncode == 0
    assert (end["status"], end["step"]) == ("failed", step)
    assert __import__("re").search(reason, end["reason"])
    assert check_manifest(agent.folder) is None
    assert agent.left(plan) == []


SERVER = """
import http.server, sys, time
port, delay_s = int(sys.argv[1]), float(sys.argv[2])
print("server starts", flush=True)
if delay_s < 0:
    sys.exit("no weights here")
time.sleep(delay_s)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def servers(*delays_s: float, gap_s: float | None) -> Plan:
    """Return a plan of servers that get ready after so many seconds, and the usual engine."""
    plan = make_plan("good")
    names = [f"server-{i}" for i in range(len(delays_s))]
    own = [
        Process(
            name,
            ["{python}", "{folder}/server.py", f"{{port:{name}}}", str(delay_s)],
            ready_url=f"http://127.0.0.1:{{port:{name}}}/health",
            ready_timeout_s=LONGEST_S,
            next_after_s=gap_s if name == names[0] else None,
        )
        for name, delay_s in zip(names, delays_s, strict=True)
    ]
    files = [*plan.files, File("server.py", SERVER)]
    ports = dict.fromkeys(names, 0)
    return replace(plan, processes=[*own, *plan.processes], files=files, ports=ports)


def starts_of(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["event"], e["process"]) for e in events if e["event"] in ("start", "ready")]


def test_servers_start_one_after_the_other(agent: Agent) -> None:
    _, events = agent.run(servers(0.3, 0.0, gap_s=None))
    assert end_of(events)["status"] == "complete"
    order = ["server-0", "server-1", "engine"]
    assert starts_of(events) == [(e, name) for name in order for e in ("start", "ready")]


def test_servers_may_get_ready_side_by_side(agent: Agent) -> None:
    _, events = agent.run(servers(1.0, 0.0, gap_s=0.1))
    assert end_of(events)["status"] == "complete"
    told = starts_of(events)
    assert told[:2] == [("start", "server-0"), ("start", "server-1")]
    assert set(told[2:4]) == {("ready", "server-0"), ("ready", "server-1")}
    assert told[4:] == [("start", "engine"), ("ready", "engine")]


def test_a_server_that_fails_beside_another_is_named(agent: Agent) -> None:
    plan = servers(-1.0, 0.0, gap_s=0.1)
    _, events = agent.run(plan)
    assert end_of(events)["status"] == "failed"
    assert "server-0 ended with status 1" in end_of(events)["reason"]
    assert "no weights here" in end_of(events)["reason"]
    assert agent.left(plan) == []


def test_what_a_search_path_holds_already_stays(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan("good")
    env = {"COLOUR": "own{also:SOME_PATH}"}
    plan = replace(plan, processes=[replace(plan.processes[0], env=env)])
    monkeypatch.setenv("SOME_PATH", "/a:/b")
    agent.run(plan)
    assert (agent.folder / "engine.log").read_text().startswith("engine is up own:/a:/b\n")
    monkeypatch.delenv("SOME_PATH")
    agent.run(replace(plan, launch="launch-2"))
    log = agent.work / "launches" / "launch-2" / "engine.log"
    assert log.read_text().startswith("engine is up own\n")


def test_a_program_that_is_not_there_is_named(agent: Agent) -> None:
    plan = make_plan("good", processes=[Process("engine", ["/no/such/program"])])
    _, events = agent.run(plan)
    assert end_of(events)["step"] == "start engine"
    assert "/no/such/program" in end_of(events)["reason"]


def test_a_payload_on_the_wrong_counters_ends_the_cell_after_warm_up(agent: Agent) -> None:
    plan = make_plan("good")
    phase = plan.cells[0].phases[0]
    claim = Claim("tcp", ["tcp"], "read", "DRAM", 8, {}, counters=["interface"], interfaces=["lo"])
    warmup = Phase("warmup", phase.command, LONGEST_S, payload_bytes=10**12)
    later = Phase("one_at_a_time", phase.command, LONGEST_S)
    cells = [PlannedCell("cell-1", 1, [warmup, later])]
    _, events = agent.run(make_plan("good", claim=claim, cells=cells))
    assert end_of(events)["status"] == "stopped"
    assert "net/lo rx_bytes" in end_of(events)["reason"]
    assert [e["phase"] for e in events if e["event"] == "phase_start"] == ["warmup"]
    # The program was asked to end, so that what it prints at its end is there.
    assert "clean end" in (agent.folder / "engine.log").read_text()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("close", "the client closed the connection"),
        ("stop", "the client asked for it"),
        ("term", "signal SIGTERM"),
        ("silence", "no heartbeat for"),
    ],
)
def test_losing_the_client_ends_everything(agent: Agent, how: str, reason: str) -> None:
    plan = make_plan("stubborn", cells=[PlannedCell("c", 1, [_long_phase()])])
    process = agent.start(plan, "--lease-s", "5" if how == "silence" else "600")
    assert process.stdin is not None
    with heartbeats(process.stdin):
        wait_for(process, "phase_start")
    if how == "close":
        process.stdin.close()
    elif how == "stop":
        process.stdin.write("stop\n")
        process.stdin.flush()
    elif how == "term":
        process.send_signal(signal.SIGTERM)
    process.wait(timeout=LONGEST_S)
    assert process.stdout is not None
    end = end_of([json.loads(line) for line in process.stdout])
    assert end["status"] == "interrupted"
    assert end["reason"].startswith(reason)
    assert agent.left(plan) == []


@contextlib.contextmanager
def heartbeats(stdin: IO[str]) -> Iterator[None]:
    """Show signs of life to an agent, as its client does."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(0.1):
            stdin.write("\n")
            stdin.flush()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_killed_agent_is_cleaned_up_after_by_the_next(agent: Agent) -> None:
    plan = make_plan("stubborn", cells=[PlannedCell("c", 1, [_long_phase()])])
    process = agent.start(plan)
    wait_for(process, "progress")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # The engine may die of its broken pipe; its child in another session does not.
    assert agent.left(plan)
    argv = [sys.executable, str(agent.path), "--work-dir", str(agent.work), "reap"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    reaped = [json.loads(x) for x in done.stdout.splitlines() if '"reaped"' in x]
    assert [row["left"] for row in reaped] == [[]]
    assert agent.left(plan) == []
    assert list((agent.work / "ledger").glob("*")) == []


def test_a_busy_host_names_its_holder(agent: Agent, tmp_path: Path) -> None:
    plan = make_plan("hang", cells=[PlannedCell("c", 1, [_long_phase()])])
    first = agent.start(plan)
    wait_for(first, "phase_start")
    second = Agent(tmp_path)
    returncode, events = second.run(make_plan("good", owner=ANOTHER, launch="launch-2"))
    assert returncode == 75
    assert events[-1]["holder"]["owner"] == OWNER
    assert events[-1]["holder"]["pid"] == first.pid
    assert agent.left(plan)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=LONGEST_S)


def test_who_waits_for_the_lock_gets_the_host_when_it_is_free(agent: Agent, tmp_path: Path) -> None:
    plan = make_plan("hang", cells=[PlannedCell("c", 1, [_long_phase()])])
    first = agent.start(plan)
    wait_for(first, "phase_start")
    waiting = Agent(tmp_path).start(
        make_plan("good", owner=ANOTHER, launch="launch-2"), "--lock-timeout-s", "600"
    )
    wait_for(waiting, "alive")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=LONGEST_S)
    out, _ = waiting.communicate(timeout=LONGEST_S)
    assert waiting.returncode == 0
    assert end_of([json.loads(line) for line in out.splitlines()])["status"] == "complete"


def test_who_waits_for_the_lock_and_loses_its_client_stops_waiting(
    agent: Agent, tmp_path: Path
) -> None:
    first = agent.start(make_plan("hang", cells=[PlannedCell("c", 1, [_long_phase()])]))
    wait_for(first, "phase_start")
    waiting = Agent(tmp_path).start(
        make_plan("good", launch="launch-2"), "--lock-timeout-s", "600", "--lease-s", "600"
    )
    wait_for(waiting, "alive")
    waiting.communicate(timeout=LONGEST_S)  # closes its input
    assert waiting.returncode == 75
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=LONGEST_S)


@pytest.mark.parametrize("command", [["reap"], ["stop", "--owner", "another"]])
def test_a_running_launch_is_nobody_elses_to_end(agent: Agent, command: list[str]) -> None:
    plan = make_plan("hang", cells=[PlannedCell("c", 1, [_long_phase()])])
    process = agent.start(plan)
    wait_for(process, "phase_start")
    argv = [sys.executable, str(agent.path), "--work-dir", str(agent.work), *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 75
    assert f'"owner": "{OWNER}"' in done.stdout
    assert agent.left(plan)
    # Its owner may.
    argv[-len(command) :] = ["stop", "--owner", OWNER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0
    assert agent.left(plan) == []
    process.communicate(timeout=LONGEST_S)


def test_a_plan_of_another_version_is_refused_in_one_event(agent: Agent) -> None:
    agent.work.mkdir()
    process = agent.start(make_plan("good", version=99))
    out, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 65
    assert "version 99" in json.loads(out)["reason"]


def test_a_port_that_one_process_tells_reaches_the_next(agent: Agent) -> None:
    first = make_plan("good").processes[0]
    ports = "{port:fixed} {port:told} {port:nobody}"
    second = Process("second", ["{python}", "-c", f"print('{ports}')"])
    agent.run(make_plan("good", processes=[first, second], cells=[], ports={"fixed": 77}))
    assert (agent.folder / "second.log").read_text() == "77 4242 0\n"
    assert "ports" not in json.loads((agent.folder / "versions.json").read_text() or "{}")


def test_secrets_do_not_reach_the_raw_folder(agent: Agent) -> None:
    plan = make_plan("good")
    spec = plan.processes[0]
    env = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "COLOUR": "blue"}
    secret = Process(spec.name, spec.argv, env, "ready", LONGEST_S, "quit")
    agent.run(make_plan("good", processes=[secret]))
    for path in agent.folder.rglob("*"):
        if path.is_file():
            assert "hf_abcdefghijklmnopqrstuv" not in path.read_text()


def _long_phase() -> Phase:
    return Phase("warmup", Command(["engine"], {}, "phase_done"), timeout_s=600.0)
