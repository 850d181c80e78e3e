"""Holds what byte counters saw against the payload that went, or must not have gone, their way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kvroad.evidence.counter import WORD_BYTES, Edge, Flow, counter_kinds, flow_between
from kvroad.plan import Claim

__all__ = ["Check", "Tolerances", "early_check", "weigh", "weigh_packets", "word_byte_hint"]

# The largest MTU of InfiniBand and RoCE: so many bytes a packet carries at most.
MAX_MTU_BYTES = 4096
RATIO_SLACK = 0.05


class Tolerances(Protocol):
    """Bounds of the byte witnesses; shares of the payload and bytes per second."""

    @property
    def carried_at_least(self) -> float:
        """Least share of the payload on the claimed road's counters."""
        ...

    @property
    def not_carried_at_most(self) -> float:
        """Largest share of the payload on any other counter."""
        ...

    @property
    def idle_bytes_per_s(self) -> float:
        """What else may move on the other counters."""
        ...


@dataclass(frozen=True)
class Check:
    """One kind of counter held against the payload; ``ok`` None: it cannot tell."""

    kind: str
    ok: bool | None
    expected: str
    seen: str
    where: str


def word_byte_hint(ratio: float) -> str:
    """Name the mistake behind a ratio of counted to moved bytes near 1/4 or 4, else ``""``."""
    for factor, what in (
        (1 / WORD_BYTES, "words taken for bytes"),
        (WORD_BYTES, "bytes for words"),
    ):
        if abs(ratio / factor - 1) <= RATIO_SLACK:
            return f"word/byte mistake? {what}"
    return ""


def weigh(
    flow: Flow,
    payload_bytes: int,
    must_carry: bool,
    tolerances: Tolerances,
    side: str | None = None,
) -> Check:
    """Hold a flow against the payload that went, or must not have gone, this way.

    ``side`` is the end of the road whose counters these are: ``prefill`` sends the payload,
    ``decode`` receives it. None: both ends lie on one host, where on a loopback interface
    each byte is received and sent, so that received is what the payload is.
    """
    name, is_sender = f"{flow.kind.name}_bytes", side == "prefill"
    carried = flow.sent_bytes if is_sender else flow.received_bytes
    where = flow.where_of(flow.kind.sent if is_sender else flow.kind.received)
    if payload_bytes <= 0:
        return Check(name, None, "a payload", "no payload moved", where)
    least, most = _bounds(flow, payload_bytes, tolerances)
    expected = f"at least {least:.0f} bytes" if must_carry else f"at most {most:.0f} bytes"
    if carried is None:
        return Check(name, None, expected, flow.reason, where)
    if not must_carry:
        moved = max(flow.received_bytes or 0, flow.sent_bytes or 0)
        return Check(name, moved <= most, expected, _seen(moved, payload_bytes), where)
    hint = word_byte_hint(carried / payload_bytes)
    seen = _seen(carried, payload_bytes) + (f"; {hint}" if hint else "")
    ok = carried >= least
    # Four times the payload on a port is no proof that the payload went there once.
    is_doubtful = ok and flow.kind.unit_bytes == WORD_BYTES and bool(hint)
    return Check(name, None if is_doubtful else ok, expected, seen, where)


def _bounds(flow: Flow, payload_bytes: int, tolerances: Tolerances) -> tuple[float, float]:
    """Return the least bytes of a road that carried, and the most of one that did not."""
    most = tolerances.not_carried_at_most * payload_bytes
    most += tolerances.idle_bytes_per_s * flow.seconds
    return tolerances.carried_at_least * payload_bytes, most


def _seen(moved: int, payload_bytes: int) -> str:
    return f"{moved} bytes, {moved / payload_bytes:.3f} x the payload"


def weigh_packets(
    flow: Flow,
    payload_bytes: int,
    must_carry: bool,
    tolerances: Tolerances,
    side: str | None = None,
) -> Check | None:
    """Hold the packets of ports without byte counters against the payload; None: no such ports.

    A packet carries at most 4096 bytes: too few cannot have carried the payload, and few
    enough cannot have carried what must not go there. Many small ones tell nothing there.
    """
    is_sender = side == "prefill"
    packets = flow.packets_sent if is_sender else flow.packets
    if flow.kind.packets is None or flow.received_bytes is not None or packets is None:
        return None
    least, most = _bounds(flow, payload_bytes, tolerances)
    bound = math.ceil(least / MAX_MTU_BYTES) if must_carry else int(most / MAX_MTU_BYTES)
    expected = f"at {'least' if must_carry else 'most'} {bound} packets"
    ok: bool | None = packets >= bound if must_carry else packets <= bound or None
    if payload_bytes <= 0:
        ok, expected = None, "a payload"
    where = flow.where_of(flow.kind.packets[is_sender])
    return Check(f"{flow.kind.name}_packets", ok, expected, f"{packets} packets", where)


def early_check(
    claim: Claim,
    start: Edge,
    end: Edge,
    payload_bytes: int,
    tolerances: Tolerances | None = None,
) -> list[Check]:
    """Check a road from the counters of one phase, before use counts are printed.

    One check per kind that can tell; kinds in ``claim.counters`` must have carried the
    payload, the others must not. ``tolerances`` default to the claim's own.
    """
    checks: list[Check | None] = []
    for kind in counter_kinds().values():
        if kind.own_traffic(claim):
            continue
        flow = flow_between(kind, start, end, kind.devices(claim))
        terms = (flow, payload_bytes, kind.name in claim.counters, tolerances or claim, claim.side)
        checks += [weigh(*terms), weigh_packets(*terms)]
    return [check for check in checks if check is not None and check.ok is not None]
