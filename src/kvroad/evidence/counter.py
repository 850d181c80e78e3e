"""Byte counters at the edges of a phase: how much a kind of device moved in between.

A counter that is absent, ``N/A`` or fell is unavailable, with the reason, and never zero.
Each kind of counter is one file of `kvroad.evidence.counters`, and travels to the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvroad.plan import Claim
from kvroad.registry import kinds_in

__all__ = [
    "WORD_BYTES",
    "CounterKind",
    "Counts",
    "Edge",
    "Flow",
    "UncountedError",
    "add_flows",
    "counter_kinds",
    "flow_between",
    "phase_edges",
]

# Counters of RDMA ports are words of four bytes (Linux ABI, sysfs-class-infiniband).
WORD_BYTES = 4

Counts: TypeAlias = Mapping[str, Mapping[str, "int | str | None"]]
"""Device to its counters by name; None for one that cannot be read."""


class UncountedError(Exception):
    """Why a host has no counters of a kind."""


@dataclass(frozen=True)
class CounterKind:
    """A kind of byte counter, and how a host reads it.

    Parameters
    ----------
    name
        In ``transport.counters``; its witness is called ``<name>_bytes``.
    section
        Key of its counts in a row of ``counters.jsonl``.
    received, sent
        A device's counters of either direction, in units of ``unit_bytes``.
    read
        Counts of this host; raises `UncountedError` where it has none.
    devices
        Those that a claim wants counted; none: all there are.
    title
        What its devices are called in a sentence, in the plural.
    device_title
        What one device is called, by its name in braces.
    packets
        Counters of packets of either direction, where a device may lack those of bytes.
    own_traffic
        Why the counters can tell nothing of a claim's payload; empty: they can.
    is_shared
        Whether programs of any kind use such devices, so that a contradiction says least.
    """

    name: str
    section: str
    received: str
    sent: str
    unit_bytes: int
    read: Callable[[Claim], Counts]
    devices: Callable[[Claim], list[str]]
    title: str
    device_title: str = "{}"
    packets: tuple[str, str] | None = None
    own_traffic: Callable[[Claim], str] = lambda claim: ""
    is_shared: bool = False


@functools.cache
def counter_kinds() -> dict[str, CounterKind]:
    """Return every kind of counter by name, in the order in which outcomes list them."""
    return kinds_in("kvroad.evidence.counters", CounterKind)


@dataclass(frozen=True)
class Edge:
    """The counters at the start or the end of a phase: a row of ``counters.jsonl``.

    ``counts`` and ``unavailable``, which says why there are none, are by section.
    """

    edge: str
    cell: str | None
    mono_ns: int
    counts: Mapping[str, Counts] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Edge:
        """Take what a row says; what is missing in it is not counted."""
        unavailable = row.get("unavailable") or {}
        counts = {
            section: {device: counts for device, counts in held.items() if isinstance(counts, dict)}
            for section, held in row.items()
            if section != "unavailable" and isinstance(held, dict)
        }
        cell = row.get("cell")
        named = None if cell is None else str(cell)
        return cls(str(row.get("edge", "")), named, row.get("mono_ns", 0), counts, unavailable)

    def as_row(self) -> dict[str, object]:
        """Return the row, with a key for each section."""
        head = {"edge": self.edge, "cell": self.cell}
        tail = {"unavailable": dict(self.unavailable), "mono_ns": self.mono_ns}
        return {**head, **self.counts, **tail}


@dataclass(frozen=True)
class Flow:
    """What one kind of counter saw between two edges.

    ``received_bytes`` and ``sent_bytes`` are sums over ``devices`` and None where one of
    them is unavailable, ``reason`` says why. ``packets`` and ``packets_sent`` are what
    remains of a port that counts packets only.
    """

    kind: CounterKind
    received_bytes: int | None
    sent_bytes: int | None
    seconds: float
    reason: str = ""
    devices: dict[str, int] = field(default_factory=dict)
    link_layers: dict[str, str] = field(default_factory=dict)
    packets: int | None = None
    packets_sent: int | None = None

    @property
    def where(self) -> str:
        """The counters that were read."""
        return self.where_of(self.kind.received)

    def where_of(self, counter: str) -> str:
        """Name a counter of the devices."""
        return f"{self.kind.section}/{'+'.join(self.devices) or '-'} {counter}"


def phase_edges(
    edges: Iterable[Edge], cell: str | None = None
) -> dict[tuple[str, str], tuple[Edge, Edge]]:
    """Pair the edges of a launch: cell and phase to the phase's start and end.

    Those of other cells than ``cell`` and phases without an end are left out.
    """
    starts: dict[tuple[str, str], Edge] = {}
    pairs = {}
    for edge in edges:
        named = edge.cell if edge.cell is not None else cell or ""
        if cell is not None and named != cell:
            continue
        phase, _, side = edge.edge.rpartition(":")
        if side == "start":
            starts[named, phase] = edge
        elif side == "end" and (named, phase) in starts:
            pairs[named, phase] = (starts[named, phase], edge)
    return pairs


def flow_between(kind: CounterKind, start: Edge, end: Edge, names: Collection[str] = ()) -> Flow:
    """Return what the counters of a kind saw from one edge to the next.

    ``names`` limits the devices: interfaces, RDMA ports (``mlx5_0`` or ``mlx5_0/1``) or
    GPU indices; one that is named and not counted makes the kind unavailable.
    """
    seconds = max(0.0, (end.mono_ns - start.mono_ns) / 1e9)
    before, after = start.counts.get(kind.section) or {}, end.counts.get(kind.section) or {}
    chosen = [name for name in before if not names or any(_is_named(name, n) for n in names)]
    missing = [n for n in names if not any(_is_named(name, n) for name in chosen)]
    if missing or not chosen:
        reason = start.unavailable.get(kind.section)
        reason = reason or f"no counter of {missing[0] if missing else kind.section}"
        return Flow(kind, None, None, seconds, str(reason), dict.fromkeys(chosen, 0))
    received, sent, reasons = {}, 0, []
    for name in chosen:
        rx, why = _delta(name, kind.received, before, after)
        tx, why_tx = _delta(name, kind.sent, before, after)
        reasons += [text for text in (why, why_tx) if text]
        received[name] = (rx or 0) * kind.unit_bytes
        sent += (tx or 0) * kind.unit_bytes
    packets, packets_sent = (
        _sum_if_all([_delta(name, counter, before, after)[0] for name in chosen])
        for counter in kind.packets or (None, None)
    )
    return Flow(
        kind,
        None if reasons else sum(received.values()),
        None if reasons else sent,
        seconds,
        "; ".join(dict.fromkeys(reasons)),
        received,
        {n: str(before[n]["link_layer"]) for n in chosen if before[n].get("link_layer")},
        packets,
        packets_sent,
    )


def _sum_if_all(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _is_named(device: str, name: str) -> bool:
    name = name.replace(":", "/")
    return device == name or device.rpartition("/")[0] == name


def _delta(
    device: str, counter: str | None, before: Counts, after: Counts
) -> tuple[int | None, str]:
    if counter is None:
        return None, ""
    first, last = before[device].get(counter), after.get(device, {}).get(counter)
    if not isinstance(first, int) or not isinstance(last, int):
        return None, f"{device} has no {counter}"
    if last < first:
        return None, f"{device} {counter} fell from {first} to {last}: reset or wrapped"
    return last - first, ""


def add_flows(flows: Sequence[Flow]) -> Flow:
    """Sum the flows of several phases; unavailable in one is unavailable in all."""
    lost = next((flow for flow in flows if flow.received_bytes is None), None)
    devices: dict[str, int] = {}
    layers: dict[str, str] = {}
    for flow in flows:
        layers.update(flow.link_layers)
        for name, n_bytes in flow.devices.items():
            devices[name] = devices.get(name, 0) + n_bytes
    return Flow(
        flows[0].kind,
        None if lost else sum(flow.received_bytes or 0 for flow in flows),
        None if lost else sum(flow.sent_bytes or 0 for flow in flows),
        sum(flow.seconds for flow in flows),
        lost.reason if lost else "",
        devices,
        layers,
        _sum_if_all([flow.packets for flow in flows]),
        _sum_if_all([flow.packets_sent for flow in flows]),
    )
