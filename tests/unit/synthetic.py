"""Writes cell folders and designs with known truth, in the form that measuring leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from kvroad.analysis.tables import METRICS, DesignCell, DesignFile, parse_design

DESCRIPTORS = {4096: 2340, 8192: 2980, 16384: 4260}
DESCRIPTOR_BYTES = 131072

# Returns (post_us, xfer_us) of one pull.
Times = Callable[[DesignCell, str, int], tuple[float, float]]


def planned(arms: Sequence[str], prompts: Sequence[int], blocks: int) -> list[DesignCell]:
    return [
        DesignCell(
            cell=f"{arm}-p{tokens}-b{block}-0123456789ab",
            launch=f"{arm}-b{block}",
            arm=arm,
            transport=arm.split("+")[0],
            variant=arm.partition("+")[2] or "blocks",
            prompt_tokens=tokens,
            block=block,
        )
        for block in range(blocks)
        for tokens in prompts
        for arm in arms
    ]


def design_data(cells: Sequence[DesignCell], **changes: Any) -> dict[str, Any]:
    data = {
        "study": "loopback",
        "study_name": "loopback",
        "baseline": cells[0].arm,
        "contrasts": None,
        "cells": [asdict(cell) for cell in cells],
        "claims": {
            "alpha": 0.05,
            "margins": {"pull_ms": 0.05, "post_ms": 0.05, "after_post_ms": 0.05},
            "quoted": None,
        },
        "overrides": [],
        "kv_layout": {
            str(tokens): {
                "descriptors": n,
                "descriptor_bytes": DESCRIPTOR_BYTES,
                "bytes": n * DESCRIPTOR_BYTES,
            }
            for tokens, n in DESCRIPTORS.items()
        },
    }
    return data | changes


def frames(
    arms: Mapping[str, Mapping[int, list[float]]], **changes: Any
) -> tuple[pd.DataFrame, DesignFile]:
    """Return cells whose pull_ms are given per arm and prompt, and the design around them.

    Post is half the pull; ``changes`` overwrite columns of single cells by (arm, block).
    """
    prompts = sorted(next(iter(arms.values())))
    n_blocks = max(len(v) for by in arms.values() for v in by.values())
    cells = planned(list(arms), prompts, n_blocks)
    design = parse_design(design_data(cells))
    rows = []
    for order, cell in enumerate(cells, start=1):
        value = arms[cell.arm][cell.prompt_tokens][cell.block]
        rows.append(
            {
                **{k: getattr(cell, k) for k in ("cell", "arm", "prompt_tokens", "block")},
                "outcome": "proven",
                "run_id": "run-1",
                "boot_id": "boot-1",
                "nixl_version": "1.5.1",
                "ucx_version": "1.23.0",
                "n_dropped": 0,
                "descriptors": DESCRIPTORS[cell.prompt_tokens],
                "pull_bytes": DESCRIPTORS[cell.prompt_tokens] * DESCRIPTOR_BYTES,
                "environment": json.dumps({"UCX_TLS": cell.transport, "UCX_LOG_LEVEL": "info"}),
                "executed_order": order,
                **{m.name: value for m in METRICS},
                **{f"post{s}_ms": value / 2 for s in ("", "_in_flight")},
                **{f"after_post{s}_ms": value / 2 for s in ("", "_in_flight")},
            }
        )
    frame = pd.DataFrame(rows)
    for (arm, block), columns in changes.get("at", {}).items():
        where = (frame["arm"] == arm) & (frame["block"] == block)
        for name, value in columns.items():
            frame.loc[where, name] = value
    return frame, design


def write_design(path: Path, cells: Sequence[DesignCell], **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(design_data(cells, **changes)))
    return path


def pull_rows(cell: DesignCell, times: Times, pulls: int, ranks: int = 1) -> list[dict[str, Any]]:
    n = DESCRIPTORS.get(cell.prompt_tokens, 100)
    phases = [("warmup", 2, 1), ("one_at_a_time", pulls, 1), ("in_flight", pulls, 4)]
    rows = []
    for phase, count, in_flight in phases:
        for pull in range(count):
            for rank in range(ranks):
                post_us, xfer_us = times(cell, phase, pull)
                rows.append(
                    {
                        "cell": cell.cell,
                        "phase": phase,
                        "pull": pull,
                        "rank": rank,
                        "operation": "read",
                        "descriptors_planned": n,
                        "descriptors_given": n,
                        "descriptors_moved": n,
                        "bytes_planned": n * DESCRIPTOR_BYTES,
                        "bytes_moved": n * DESCRIPTOR_BYTES,
                        "post_us": post_us,
                        "xfer_us": xfer_us,
                        "wall_us": xfer_us + 50,
                        "in_flight": in_flight,
                        "start_mono_ns": 1000 * pull,
                        "state": "DONE",
                        "verified": True,
                        "error": None,
                    }
                )
    return rows


def outcome(**changes: Any) -> dict[str, Any]:
    witness = {
        "name": "protocol_table",
        "status": "agrees",
        "expected": "cma",
        "seen": "cma",
        "where": "decode-0.log:41",
    }
    return {
        "outcome": "proven",
        "reason": "every witness agrees",
        "expected": ["cma"],
        "seen": "cma",
        "where": "decode-0.log:41",
        "quote": "cma/memory",
        "repeats": False,
        "witnesses": [witness],
        "attempt": 1,
        "run_id": "run-1",
        "measured_at": "2026-01-02T03:04:05Z",
    } | changes


def refused_outcome() -> dict[str, Any]:
    return outcome(
        outcome="refused",
        reason="the protocol table shows tcp in place of rc",
        expected=["rc_mlx5", "rc_verbs"],
        seen="tcp",
        quote="software emulation | tcp/lo",
        repeats=True,
    )


def write_cell(
    results: Path,
    cell: DesignCell,
    rows: Sequence[Mapping[str, Any]],
    *,
    order: int = 0,
    result: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write one cell folder; ``order`` is the second at which its first phase starts."""
    folder = results / "cells" / cell.cell
    raw = folder / "raw"
    raw.mkdir(parents=True)
    identity = asdict(cell) | {
        "study": "loopback",
        "session": "main",
        "attempt": 1,
        "identity": {"environment": {"UCX_TLS": f"{cell.transport},tcp", "HF_TOKEN": "secret"}},
        "git": {"commit": "abc123", "is_dirty": False},
    }
    (folder / "cell.json").write_text(json.dumps(identity))
    (folder / "outcome.json").write_text(json.dumps(dict(result or outcome())))
    host = {
        "kernel": "6.1.0",
        "cpu": "a cpu",
        "boot_id": "boot-1",
        "load_1_min": order / 7,
        "versions": {"nixl": "1.5.1", "ucx": "1.23.0", "ucx_library": "/opt/libucp.so"},
    }
    (raw / "facts.json").write_text(json.dumps(host | dict(facts or {}), indent=1))
    phases = [("warmup", 0), ("one_at_a_time", 1), ("in_flight", 2)]
    events = [
        {
            "event": "phase_start",
            "phase": phase,
            "cell": cell.cell,
            "mono_ns": 10**9 * order + 10**6 * step,
            "time": f"2026-01-02T03:{order // 60:02d}:{order % 60:02d}Z",
        }
        for phase, step in phases
    ]
    (raw / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    for rank in sorted({row["rank"] for row in rows}):
        own = (json.dumps(row) + "\n" for row in rows if row["rank"] == rank)
        (raw / f"pulls-{rank}.jsonl").write_text("".join(own))
    write_manifest(raw)
    return folder


def write_manifest(raw: Path) -> None:
    entries = {
        path.relative_to(raw).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(raw.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    (raw / "manifest.json").write_text(json.dumps(entries))
