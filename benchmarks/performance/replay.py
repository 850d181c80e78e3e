"""What the replay itself costs: its pulls against a bare loop of NIXL calls, turn by turn."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.performance.checkout import load
from kvroad.engines.nixl import replay_plan
from kvroad.hosts import open_host
from kvroad.plan import File, Phase, Plan
from kvroad.study.compose import compose
from kvroad.study.design import make_design

__all__ = ["CASES", "measure_replay"]

# Progress threads that spin, posting threads beside them: what it does on few cores.
CASES = {
    "default (4 posting threads, progress thread spins)": [],
    "no posting threads": ["engine.num_threads=0"],
    "no posting threads, progress thread pauses 100 µs": [
        "engine.num_threads=0",
        "engine.progress_delay_us=100",
    ],
}
_KINDS = ("replay", "bare", "hot")
# Every kind in each place twice.
_TURNS, _PULLS = 12, 10
_LENGTH = 1024


def measure_replay(folder: Path) -> dict[str, Any]:
    """Run launches through the agent in which phases of the replay and of the loop alternate."""
    rows = []
    for case, overrides in CASES.items():
        for transport in ("shm", "tcp"):
            rows += _case(folder, case, transport, overrides)
    return {"rows": rows, "turns": _TURNS, "pulls": _PULLS, "length": _LENGTH, "load": load()}


def _case(folder: Path, case: str, transport: str, overrides: list[str]) -> list[dict[str, Any]]:
    study = compose(
        [
            *("study=smoke", f"transport=[{transport}]", f"prompt_tokens=[{_LENGTH}]"),
            *("workload.concurrency=4", f"host.work_dir={folder}/work", *overrides),
        ],
        folder / "conf",
    )
    launch = make_design(study).launches[0]
    plan = _plan(replay_plan(study, launch, launch.cells, "a benchmark"))
    raw = folder / "replay-raw"
    shutil.rmtree(raw, ignore_errors=True)
    before = os.times()
    host = open_host(study.host)
    host.run(plan, raw, lambda event: None)
    host.close()
    after = os.times()
    end = json.loads((raw / "events.jsonl").read_text().splitlines()[-1])
    if end.get("status") != "complete":
        raise RuntimeError(f"{case}, {transport}: {end}")
    pulls = [json.loads(line) for line in (raw / "pulls-0.jsonl").read_text().splitlines()]
    shutil.rmtree(raw)
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    return [
        {"case": case, "transport": transport, "in_flight": n, "cpu_s": cpu_s, **_ratios(pulls, n)}
        for n in (1, 4)
    ]


def _plan(plan: Plan) -> Plan:
    """Return the plan with phases of all kinds in turn, each order as often as any other."""
    orders = list(itertools.permutations(_KINDS))
    (cell,) = plan.cells
    warmup, alone, together = cell.phases
    phases: list[Phase] = [warmup]
    for turn in range(_TURNS):
        for like, n in ((alone, 1), (together, 4)):
            for kind in orders[turn % len(orders)]:
                name = f"{kind}-{n}-{turn}"
                line = {**like.command.line, "phase": name, "pulls": _PULLS, "in_flight": n}
                command = replace(like.command, line=line)
                phases.append(replace(like, name=name, command=command, payload_bytes=None))
    source = (Path(__file__).parent / "bare.py").read_text()
    processes = [
        replace(p, argv=[w if w != "replay" else "bare" for w in p.argv])
        if p.side == "decode"
        else p
        for p in plan.processes
    ]
    return replace(
        plan,
        cells=[replace(cell, phases=phases)],
        files=[*plan.files, File("bare.py", source)],
        processes=processes,
    )


def _ratios(pulls: list[dict[str, Any]], in_flight: int) -> dict[str, float]:
    """Return medians over turns: of rates, of post times, and their ratios turn by turn.

    Alone, a pull's rate is by the time from its call to its end; several in flight, by the
    time from the first call to the last end.
    """
    rate: dict[tuple[str, int], float] = {}
    post: dict[tuple[str, int], float] = {}
    keys = {row["phase"] for row in pulls if f"-{in_flight}-" in row["phase"]}
    for phase in keys:
        own = [row for row in pulls if row["phase"] == phase]
        kind, _, turn = phase.split("-")
        if in_flight == 1:
            wall_us = median(row["wall_us"] for row in own)
        else:
            ends = [row["start_mono_ns"] / 1000 + row["wall_us"] for row in own]
            wall_us = (max(ends) - min(row["start_mono_ns"] for row in own) / 1000) / len(own)
        rate[kind, int(turn)] = 1e6 / wall_us
        post[kind, int(turn)] = median(row["post_us"] for row in own)
    turns = sorted({turn for _, turn in rate})
    told: dict[str, float] = {}
    for kind in _KINDS:
        told[f"{kind}_pulls_per_s"] = median(rate[kind, t] for t in turns)
        told[f"{kind}_post_us"] = median(post[kind, t] for t in turns)
    for other in _KINDS[1:]:
        for name, values in (("rate", rate), ("post", post)):
            ratios = sorted(values["replay", t] / values[other, t] for t in turns)
            told[f"{name}_to_{other}"] = median(ratios)
            told[f"{name}_to_{other}_low"] = ratios[len(ratios) // 4]
            told[f"{name}_to_{other}_high"] = ratios[-1 - len(ratios) // 4]
    return told
