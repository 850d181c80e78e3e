"""vLLM's ``KV Transfer metrics`` lines, one every ten seconds, as records.

As vLLM 0.23 to 0.31 print them (``kv_connector/v1/metrics.py`` and the NIXL connector's
``stats.py``): ``KV Transfer metrics: `` and then ``name=value`` joined by commas. An observation
is one rank's transfer from one remote rank; "MB" is 2^20 bytes; the throughput is all bytes over
the sum of all durations, so the mean rate of a transfer and never that of the deployment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NEEDLE", "TransferLine", "TransferSum", "parse_transfer_line"]

NEEDLE = "KV Transfer metrics: "
_PAIR = re.compile(r"([A-Z][\w ()/]*?)=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)\b")
_MIB = 2**20


@dataclass(frozen=True)
class TransferLine:
    """The transfers of one interval; times in ms, means over the transfers.

    ``failed`` and ``expired`` are None in versions that do not print them.
    """

    transfers: int
    xfer_ms: float | None
    post_ms: float | None
    transfer_bytes: float | None
    descriptors: float | None
    failed: int | None
    expired: int | None


def parse_transfer_line(line: str) -> TransferLine | None:
    """Read a line; None where it is none, or says nothing of transfers."""
    _, found, text = line.partition(NEEDLE)
    if not found:
        return None
    values = {name.strip(): float(value) for name, value in _PAIR.findall(text)}
    if "Num successful transfers" not in values and "Num failed transfers" not in values:
        return None
    mib = values.get("Avg MB per transfer")
    return TransferLine(
        transfers=int(values.get("Num successful transfers", 0)),
        xfer_ms=values.get("Avg xfer time (ms)"),
        post_ms=values.get("Avg post time (ms)"),
        transfer_bytes=None if mib is None else mib * _MIB,
        descriptors=values.get("Avg number of descriptors"),
        failed=_count(values.get("Num failed transfers")),
        expired=_count(values.get("Num KV expired reqs")),
    )


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


@dataclass
class TransferSum:
    """All intervals of a log, weighted by their transfers."""

    lines: int = 0
    transfers: int = 0
    xfer_ms: float = 0.0
    post_ms: float = 0.0
    n_bytes: float = 0.0
    descriptors: float = 0.0
    failed: int = 0
    expired: int = 0

    def add(self, line: TransferLine) -> None:
        """Take one more interval."""
        self.lines += 1
        self.failed += line.failed or 0
        self.expired += line.expired or 0
        parts = (line.xfer_ms, line.post_ms, line.transfer_bytes, line.descriptors)
        if line.transfers < 1 or None in parts:
            return
        xfer, post, size, descriptors = (part or 0.0 for part in parts)
        self.transfers += line.transfers
        self.xfer_ms += line.transfers * xfer
        self.post_ms += line.transfers * post
        self.n_bytes += line.transfers * size
        self.descriptors += line.transfers * descriptors

    @property
    def descriptor_bytes(self) -> int | None:
        """Mean bytes of a descriptor; None where nothing was moved."""
        return round(self.n_bytes / self.descriptors) if self.descriptors else None

    @property
    def gb_per_s(self) -> float | None:
        """Mean rate of a transfer, bytes over its time, in GB/s (10^9)."""
        return self.n_bytes / (self.xfer_ms * 1e6) if self.xfer_ms else None
