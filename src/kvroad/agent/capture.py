"""The byte counters at the edges of phases, as the kernel and the driver give them."""

from __future__ import annotations

import json
import time
from pathlib import Path

from kvroad.evidence.counter import Counts, Edge, UncountedError, counter_kinds
from kvroad.evidence.weigh import Check, early_check
from kvroad.plan import Claim

__all__ = ["Capture"]


class Capture:
    """Reads all counters that a claim names and keeps one row per edge in a file."""

    def __init__(self, claim: Claim, path: Path) -> None:
        self._claim = claim
        self._path = path

    def edge(self, name: str, cell: str) -> Edge:
        """Read the counters, append the row and return it.

        The clock is read last at a start and first at an end, so that reading the
        counters is never counted as load.
        """
        is_end = name.endswith(":end")
        mono_ns = time.monotonic_ns() if is_end else 0
        counts: dict[str, Counts] = {}
        unavailable: dict[str, str] = {}
        for kind in counter_kinds().values():
            try:
                counts[kind.section] = kind.read(self._claim)
            except UncountedError as reason:
                counts[kind.section], unavailable[kind.section] = {}, str(reason)
        mono_ns = mono_ns if is_end else time.monotonic_ns()
        row = Edge(name, cell, mono_ns, counts, unavailable)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row.as_row()) + "\n")
        return row

    def check(self, before: Edge, after: Edge, payload_bytes: int) -> list[Check]:
        """Hold the counters of one phase against what the claim says of its payload."""
        return early_check(self._claim, before, after, payload_bytes)
