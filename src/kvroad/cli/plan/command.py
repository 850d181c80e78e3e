"""``kvroad plan``: what a study would run, and what it could show."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from kvroad.analysis.saved_study import SavedStudy
from kvroad.analysis.tables import metric
from kvroad.cli.plan.outlook import (
    SCHEMA,
    Duration,
    duration_of,
    expected,
    matrix,
    memory,
    next_plans,
    to_run,
)
from kvroad.cli.plan.power import power_of
from kvroad.cli.status import DONE, REPORTS, RESULTS, NotUnderstood, study_of
from kvroad.cli.table import table_lines
from kvroad.errors import nearest
from kvroad.evidence.redact import redact_env, redact_text
from kvroad.plan import Plan, Process
from kvroad.publish.archive import ARCHIVE
from kvroad.results import outcome_of
from kvroad.study.design import Cell, Launch, make_design
from kvroad.study.fields import Study
from kvroad.study.name import PUBLISHED, study_slug
from kvroad.study.sides import hosts_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print what would run; nothing on a host is touched."""
    study = study_of(arguments.overrides)
    if arguments.launch and not arguments.show_commands:
        raise NotUnderstood("--launch says whose commands: it needs --show-commands")
    facts = _facts(study, arguments)
    if arguments.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return DONE
    lines = _command_lines(facts) if arguments.show_commands else _lines(study, facts)
    for line in lines:
        print(line)
    return DONE


def _facts(study: Study, arguments: argparse.Namespace) -> dict[str, Any]:
    design = make_design(study)
    rows = to_run(study, design, RESULTS)
    duration = duration_of(design, rows, RESULTS)
    try:
        plans = next_plans(study, design, RESULTS, arguments.launch)
    except KeyError as error:
        names = [launch.id for launch in design.launches]
        raise NotUnderstood(
            f"no launch {arguments.launch!r}{nearest(arguments.launch, names)} "
            "(see kvroad plan --json)"
        ) from error
    power = power_of(study, REPORTS, RESULTS, arguments.spread_from)
    prices = {host.name: host.price_per_hour for host in hosts_of(study)}
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "study": study_slug(study),
        "host": {"name": study.host.name, "connection": study.host.connection},
        "hosts": [{"name": h.name, "connection": h.connection} for h in hosts_of(study)],
        "engine": study.engine.name,
        "model": study.model.name,
        "baseline": study.baseline,
        "launches": study.launches,
        "cells": len(design.cells),
        "matrix": matrix(design, RESULTS),
        "published": _published(study, [cell.id for cell in design.cells]),
        "to_run": rows,
        "time": asdict(duration),
        "memory": memory(study, design),
        "price_per_hour": study.host.price_per_hour if len(prices) == 1 else prices,
        "cost": _cost(prices, duration),
        "arms": [expected(study, launch, plan) for launch, _, plan in plans],
        "power": {"spread_from": power.source, "rows": [_finite(row) for row in power.rows]},
    }
    if arguments.show_commands:
        facts["commands"] = [_commands(*one) for one in plans]
    return facts


def _cost(prices: Mapping[str, float | None], duration: Duration) -> float | None:
    """Return what the time of every host costs; None where a price or the time is not known."""
    if duration.seconds is None:
        return None
    cost = 0.0
    for host, price in prices.items():
        if price is None:
            return None
        cost += price * duration.by_host.get(host, 0.0) / 3600
    return cost


def _published(study: Study, cells: list[str]) -> dict[str, Any] | None:
    """Return the report whose raw files hold cells of the study that are not taken in here."""
    report = SavedStudy(study.name, REPORTS / PUBLISHED / study.name)
    if not report.has("cells") or not (archive := report.folder / ARCHIVE).is_file():
        return None
    there = set(report.table("cells")["cell"]) & set(cells)
    missing = [cell for cell in there if outcome_of(RESULTS, cell) is None]
    return {"archive": str(archive), "cells": len(missing)} if missing else None


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


def _lines(study: Study, facts: dict[str, Any]) -> Iterator[str]:
    hosts = [f"{host['name']} ({host['connection']})" for host in facts["hosts"]]
    yield (
        f"{facts['study']}: {facts['engine']} on host{'s' if len(hosts) > 1 else ''} "
        f"{', '.join(hosts)}, "
        f"{facts['model']}, baseline {facts['baseline']}, every arm launched "
        f"{facts['launches']} times, {facts['cells']} cells"
    )
    yield ""
    yield from _matrix_lines(facts["matrix"])
    if published := facts["published"]:
        yield (
            f"{published['archive']} holds {published['cells']} of these cells as published; "
            f"tar -xJf {published['archive']} takes them in"
        )
    yield ""
    yield from _order_lines(facts["to_run"])
    yield ""
    yield from _time_lines(facts)
    yield _memory_line(facts["memory"])
    yield ""
    yield from _arm_lines(facts["arms"])
    yield ""
    yield from _power_lines(study, facts["power"])


def _matrix_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    counts = ("proven", "refused", "failed", "missing")
    yield from table_lines(
        ["arm", "prompt", *counts],
        [
            [row["arm"], f"{row['prompt_tokens']:,}", *(str(row[name]) for name in counts)]
            for row in rows
        ],
    )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            text = row["reason"].split(" (as in ", 1)[0]
            reasons.setdefault(f"{row['arm']}: {text}", []).append(f"{row['prompt_tokens']:,}")
    for text, lengths in reasons.items():
        yield f"not proven at {', '.join(lengths)}: {text}"


def _order_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "to run: nothing, every cell is settled"
        return
    yield f"to run: {len(rows)} launches, in this order (block: prompt lengths: arms)"
    blocks: dict[str, list[tuple[str, list[str]]]] = {}
    is_several = len({row["host"] for row in rows}) > 1
    for row in rows:
        lengths = " ".join(map(str, row["prompt_tokens"]))
        name = f"{row['block']} on {row['host']}" if is_several else str(row["block"])
        groups = blocks.setdefault(name, [])
        if not groups or groups[-1][0] != lengths:
            groups.append((lengths, []))
        groups[-1][1].append(row["arm"])
    for block, groups in blocks.items():
        text = " | ".join(f"{lengths}: {' '.join(arms)}" for lengths, arms in groups)
        yield f"  {block}: {text}"


def _time_lines(facts: dict[str, Any]) -> Iterator[str]:
    time = facts["time"]
    if not facts["to_run"]:
        yield "time: none"
        return
    if time["seconds"] is None:
        yield "time: unknown, no launch of this study has been seen here"
    else:
        unlike = (
            f"; {time['n_unlike']} are unlike any seen and counted as the longest"
            if time["n_unlike"]
            else ""
        )
        yield (f"time: about {_span(time['seconds'])}, from {time['n_seen']} launches seen{unlike}")
    price = facts["price_per_hour"]
    if isinstance(price, dict):
        yield from _cost_lines(price, facts["cost"])
    elif price is None:
        yield "cost: unknown, host.price_per_hour is not set"
    elif facts["cost"] is None:
        yield f"cost: {price:g} for each hour that it takes (host.price_per_hour)"
    else:
        yield f"cost: about {facts['cost']:.2f} at {price:g} per hour (host.price_per_hour)"


def _cost_lines(prices: Mapping[str, float | None], cost: float | None) -> Iterator[str]:
    """Say what several hosts cost together, each while it works."""
    missing = [host for host, price in prices.items() if price is None]
    if missing:
        yield f"cost: unknown, no price_per_hour of host {', '.join(missing)}"
    elif cost is not None:
        yield f"cost: about {cost:.2f}, each host while it works (price_per_hour)"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _memory_line(pools: dict[str, Any] | None) -> str:
    if pools is None:
        return "memory: what the engine is told to take; no pools of kvroad's"
    each = f"{pools['bytes_per_side'] / 1e9:.2f} GB of {pools['kind']}"
    ranks = f" over {pools['ranks_per_side']} ranks" if pools["ranks_per_side"] > 1 else ""
    where = "both on one host" if pools["is_one_host"] else "one on each host"
    return (
        f"memory: {each} for the pools of prefill{ranks}, as much for decode, {where} "
        f"(largest: {pools['arm']} at {pools['prompt_tokens']:,} tokens)"
    )


def _arm_lines(arms: list[dict[str, Any]]) -> Iterator[str]:
    yield "expected of each arm:"
    for arm in arms:
        roads = " or ".join(arm["roads"])
        yield (
            f"  {arm['arm']}: {arm['operation']} of {arm['memory']} over {roads}, "
            f"UCX_TLS={arm['ucx_tls']}"
        )
        pulls = [
            f"{p['descriptors']:,} x {p['descriptor_bytes']:,} bytes at {p['prompt_tokens']:,}"
            for p in arm["pulls"]
        ]
        yield f"    a rank's pull: {', '.join(pulls)} tokens"
        for witness in arm["witnesses"]:
            yield f"    {witness['name']}: {witness['expected']}"


def _power_lines(study: Study, power: dict[str, Any]) -> Iterator[str]:
    if not power["rows"]:
        yield (
            "power: unknown, nothing was measured yet that shows how launches vary "
            "(--spread-from STUDY takes another study's spread)"
        )
        return
    yield f"power of {study.launches} launches, with the spread of {power['spread_from']}:"
    header = ["metric", "spread", "interval around 1x", "same within", "chance"]
    header += ["80 % takes", "chance to show 1.15x"]
    yield from table_lines(header, [_power_row(row) for row in power["rows"]], indent="  ")
    yield (
        "  spread: standard deviation of a block's log ratio; chance of same: where there is no "
        "difference at all"
    )


def _power_row(row: dict[str, Any]) -> list[str]:
    if row["margin"] is None:
        same = ["no margin", "", ""]
    else:
        needed = row["launches_for_same"]
        takes = f"{needed} launches" if needed else "over 64 launches"
        same = [f"{100 * row['margin']:g} %", _chance(row["chance_of_same"]), takes]
    return [
        metric(row["metric"]).label,
        f"{100 * row['sd']:,.0f} %" if row["sd"] >= 0.1 else f"{100 * row['sd']:.2g} %",
        f"{row['interval_low']:.3g} to {row['interval_high']:.3g}",
        *same,
        _chance(row["chance_of_difference"]),
    ]


def _chance(share: float) -> str:
    if share < 0.01:
        return "below 1 %"
    return f"{100 * share:.0f} %" if share < 0.995 else "above 99 %"


def _commands(launch: Launch, cells: list[Cell], plan: Plan) -> dict[str, Any]:
    """Return the processes of a plan as plain values, without secrets; of any engine's plan."""
    return {
        "launch": launch.id,
        "arm": launch.arm.label,
        "prompt_tokens": [cell.prompt_tokens for cell in cells],
        "bind_address": plan.bind_address,
        "files": [{"path": f.path, "bytes": len(f.text.encode())} for f in plan.files],
        "processes": [_process(process) for process in plan.processes],
        "phases": [
            {"cell": cell.cell, "phase": phase.name, "pulls": phase.pulls}
            for cell in plan.cells
            for phase in cell.phases
        ],
    }


def _process(process: Process) -> dict[str, Any]:
    values = {**asdict(process), "env": redact_env(process.env)}
    # Each word by itself, then the words together: a secret may be told by the word before it.
    line = redact_text(shlex.join(process.argv))
    return {**values, "argv": [redact_text(word) for word in process.argv], "line": line}


def _command_lines(facts: dict[str, Any]) -> Iterator[str]:
    for one in facts["commands"]:
        lengths = ", ".join(f"{n:,}" for n in one["prompt_tokens"])
        yield f"{one['launch']}: arm {one['arm']}, {lengths} tokens, bound to {one['bind_address']}"
        files = ", ".join(f"{file['path']} ({file['bytes']} bytes)" for file in one["files"])
        yield f"  files: {files or 'none'}"
        for process in one["processes"]:
            yield f"  {process['name']}, {_life(process)}:"
            for name, value in sorted(process["env"].items()):
                yield f"    {name}={shlex.quote(value)} \\"
            yield f"    {process['line']}"
        phases = [f"{p['phase']} of {p['pulls']} pulls" for p in one["phases"]]
        yield f"  phases: {', '.join(phases)}"
        yield ""
    yield (
        "{python}, {folder}, {home}, {bind}, {events} and {port:NAME} are filled in on the host;"
        " {also:NAME} is what its variable NAME holds already."
    )


def _life(process: dict[str, Any]) -> str:
    event = process["ready_event"]
    within = f"within {process['ready_timeout_s']:g} s"
    start = f"ready at its event {event!r} {within}" if event else "ready once started"
    if url := process["ready_url"]:
        start = f"ready when {url} answers {within}"
    if process["next_after_s"] is not None:
        start += f" (the next one starts {process['next_after_s']:g} s after it)"
    line = process["stop_line"]
    return f"{start}, ended by {f'the line {line!r}' if line else 'TERM'}"
