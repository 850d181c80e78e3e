"""Network interfaces, whose bytes the kernel counts."""

from __future__ import annotations

from pathlib import Path

from kvroad.evidence.counter import CounterKind, Counts
from kvroad.plan import Claim

__all__ = ["INTERFACE", "parse_net_dev"]


def parse_net_dev(text: str) -> dict[str, dict[str, int]]:
    """Read ``/proc/net/dev`` (proc_net(5)): interface to ``rx_bytes`` and ``tx_bytes``."""
    counters = {}
    for line in text.splitlines():
        name, colon, numbers = line.rpartition(":")
        fields = numbers.split()
        if colon and len(fields) >= 9 and all(f.isdigit() for f in fields):
            counters[name.strip()] = {"rx_bytes": int(fields[0]), "tx_bytes": int(fields[8])}
    return counters


def _read(claim: Claim) -> Counts:
    return parse_net_dev(Path("/proc/net/dev").read_text())


INTERFACE = CounterKind(
    name="interface",
    section="net",
    received="rx_bytes",
    sent="tx_bytes",
    unit_bytes=1,
    read=_read,
    devices=lambda claim: claim.interfaces,
    title="interfaces",
    is_shared=True,
)
