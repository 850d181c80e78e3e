"""Snapshots of the engines' Prometheus metrics: sums, counts and counters, no buckets."""

from __future__ import annotations

import re
import time
from pathlib import Path

from .client import Failed, get

__all__ = ["Engines", "total"]

_KEPT = re.compile(r"vllm:\w+(?<!_bucket)(?<!_created)[{ ]")
_TIMEOUT_S = 30.0
# How long the counters may lag behind the last answer.
_SETTLE_S = 15.0

TRANSFERS = "vllm:nixl_xfer_time_seconds_count"
BYTES = "vllm:nixl_bytes_transferred_sum"


class Engines:
    """The engines by name, with the address of the metrics of each."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls = urls

    def snapshot(self, name: str) -> str:
        """Return the lines of vLLM's own metrics without histogram buckets."""
        lines = get(self.urls[name], _TIMEOUT_S).splitlines(keepends=True)
        return "".join(line for line in lines if _KEPT.match(line))

    def write(self, folder: Path, edge: str) -> dict[str, str]:
        """Keep a snapshot of every engine as ``<engine>.<edge>.prom`` and return them."""
        texts = {name: self.snapshot(name) for name in self.urls}
        for name, text in texts.items():
            (folder / f"{name}.{edge}.prom").write_text(text)
        return texts

    def settle(self, transfers: float) -> None:
        """Wait until decode has counted so many transfers, or no longer than a few seconds."""
        deadline = time.monotonic() + _SETTLE_S
        while total(self.snapshot("decode"), TRANSFERS) < transfers:
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)


def total(text: str, metric: str, label: str = "") -> float:
    """Return the sum of a metric over its label sets; 0 where it is not there.

    ``label`` is a text that the label set must hold, such as ``source="local_compute"``.
    """
    found = 0.0
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name == metric and label in rest:
            try:
                found += float(line.rpartition(" ")[2])
            except ValueError as error:
                raise Failed(f"metric {metric} has the value {line!r}") from error
    return found
