"""Writes cells of serving engines with known truth: metrics at both edges, and requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic import outcome, write_cell, write_manifest

from kvroad.analysis.tables import DesignCell

_XFER, _POST = "vllm:nixl_xfer_time_seconds", "vllm:nixl_post_time_seconds"
_BYTES, _DESCRIPTORS = "vllm:nixl_bytes_transferred", "vllm:nixl_num_descriptors"


@dataclass(frozen=True)
class Load:
    """One phase: sums over its transfers, and its requests.

    ``requests`` are (start, first token, end) in seconds; an end of None is a failed one.
    """

    transfers: int = 0
    xfer_s: float = 0.0
    post_s: float = 0.0
    n_bytes: float = 0.0
    descriptors: float = 0.0
    requests: Sequence[tuple[float, float, float | None]] = ()
    output_tokens: int = 5
    prompts: str | None = "same"

    def edges(self) -> dict[str, str]:
        """Return decode's metrics before and after; what was counted before is not zero."""
        values = {
            f"{_XFER}_count": self.transfers,
            f"{_XFER}_sum": self.xfer_s,
            f"{_POST}_sum": self.post_s,
            f"{_BYTES}_sum": self.n_bytes,
            f"{_DESCRIPTORS}_sum": self.descriptors,
        }
        before = "".join(f'{name}{{engine="0"}} 64.0\n' for name in values)
        after = "".join(f'{name}{{engine="0"}} {64.0 + v!r}\n' for name, v in values.items())
        return {"decode.start.prom": before, "decode.end.prom": after}

    def rows(self) -> str:
        """Return the requests as our own driver keeps them."""
        return "".join(
            json.dumps(
                {
                    "started": start,
                    "first_token": first if end is not None else None,
                    "ended": end,
                    "output_tokens": self.output_tokens if end is not None else 0,
                    "error": None if end is not None else "boom",
                }
            )
            + "\n"
            for start, first, end in self.requests
        )


def write_served(
    results: Path,
    cell: DesignCell,
    phases: Mapping[str, Load],
    *,
    order: int = 0,
    layout: Mapping[str, int] | None = None,
    cache_check: str | None = None,
    **changes: Any,
) -> Path:
    """Write the folder of a cell; ``changes`` are those of its outcome."""
    versions = {"vllm": "0.23.0", "ai-dynamo": "1.3.1", "nixl": "1.3.1", "ucx": "1.21.0"}
    folder = write_cell(
        results, cell, [], order=order, result=outcome(**changes), facts={"versions": versions}
    )
    if layout is not None:
        identity = json.loads((folder / "cell.json").read_text())
        (folder / "cell.json").write_text(json.dumps(identity | {"kv_layout": dict(layout)}))
    raw = folder / "raw"
    asked = [
        {"name": name, "command": {"line": {"requests": len(load.requests)}}}
        for name, load in phases.items()
    ]
    serving = {"engine_ranks": 1}
    plan = {"claim": {"serving": serving}, "cells": [{"cell": cell.cell, "phases": asked}]}
    (raw / "plan.json").write_text(json.dumps(plan))
    for name, load in phases.items():
        place = raw / "serving" / cell.cell / name
        place.mkdir(parents=True)
        for file, text in load.edges().items():
            (place / file).write_text(text)
        (place / "requests.jsonl").write_text(load.rows())
        (place / "load.json").write_text(json.dumps({"prompts_sha256": load.prompts}))
    if cache_check is not None:
        ready = {"event": "ready", "process": "driver", "cache_check": cache_check}
        with (raw / "events.jsonl").open("a") as events:
            events.write(json.dumps(ready) + "\n")
    write_manifest(raw)
    return folder
