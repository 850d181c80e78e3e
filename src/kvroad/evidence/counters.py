"""Byte counters at the edges of a phase: how much a kind of device moved in between.

Units: ``/proc/net/dev`` counts bytes, RDMA ports count words of four bytes (Linux ABI,
sysfs-class-infiniband), NVLink counts KiB. A counter that is absent, ``N/A`` or fell is
unavailable, with the reason, and never zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvroad.plan import Claim

__all__ = [
    "KINDS",
    "WORD_BYTES",
    "Check",
    "Flow",
    "Tolerances",
    "add_flows",
    "early_check",
    "flow_between",
    "own_traffic",
    "parse_counter",
    "parse_net_dev",
    "parse_nvlink",
    "phase_edges",
    "watched",
    "weigh",
    "weigh_packets",
    "word_byte_hint",
]

WORD_BYTES = 4
KIB = 1024
# The largest MTU of InfiniBand and RoCE: so many bytes a packet carries at most.
MAX_MTU_BYTES = 4096
RATIO_SLACK = 0.05


@dataclass(frozen=True)
class _Layout:
    section: str
    received: str
    sent: str
    unit_bytes: int


_LAYOUTS = {
    "interface": _Layout("net", "rx_bytes", "tx_bytes", 1),
    "nic": _Layout("rdma", "port_rcv_data", "port_xmit_data", WORD_BYTES),
    "nvlink": _Layout("nvlink", "rx_kib", "tx_kib", KIB),
}
KINDS = tuple(_LAYOUTS)
_PACKETS = "rcvd_pkts"
_PACKETS_SENT = "sent_pkts"

_GPU = re.compile(r"GPU (\d+):")
_LINK = re.compile(r"Link (\d+): *(.*)")
_LINK_COUNTER = re.compile(r"\b(Tx|Rx)\d*: *(\d+|N/A)")


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
class Flow:
    """What one kind of counter saw between two edges.

    ``received_bytes`` and ``sent_bytes`` are sums over ``devices`` and None where one of
    them is unavailable, ``reason`` says why. ``packets`` and ``packets_sent`` are what
    remains of a port that counts packets only.
    """

    kind: str
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
        layout = _LAYOUTS[self.kind]
        return f"{layout.section}/{'+'.join(self.devices) or '-'} {layout.received}"


@dataclass(frozen=True)
class Check:
    """One kind of counter held against the payload; ``ok`` None: it cannot tell."""

    kind: str
    ok: bool | None
    expected: str
    seen: str
    where: str

    def as_event(self) -> dict[str, Any]:
        """Return the fields of a ``check`` event."""
        return {
            "kind": self.kind,
            "ok": self.ok,
            "expected": self.expected,
            "seen": self.seen,
            "where": self.where,
        }


def watched(claim: Claim, kind: str) -> list[str]:
    """Return the devices of this kind that a claim wants counted; [] is all there are."""
    names: dict[str, Sequence[object]] = {
        "interface": claim.interfaces,
        "nic": claim.rdma_devices,
        "nvlink": claim.gpus,
    }
    return [str(name) for name in names[kind]]


def own_traffic(claim: Claim, kind: str) -> str:
    """Return why a kind of counter can tell nothing of the payload, or an empty text.

    The ranks of a serving engine exchange activations over NVLink at every layer.
    """
    if kind == "nvlink" and claim.serving is not None and claim.serving.engine_ranks > 1:
        return f"engines of {claim.serving.engine_ranks} ranks use NVLink themselves"
    return ""


def phase_edges(
    edges: Iterable[Mapping[str, Any]], cell: str | None = None
) -> dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Pair the rows of a counter file: cell and phase to the phase's start and end.

    Rows of other cells than ``cell`` and phases without an end are left out.
    """
    starts: dict[tuple[str, str], Mapping[str, Any]] = {}
    pairs = {}
    for row in edges:
        named = str(row.get("cell", cell or ""))
        if cell is not None and named != cell:
            continue
        phase, _, side = str(row.get("edge", "")).rpartition(":")
        if side == "start":
            starts[named, phase] = row
        elif side == "end" and (named, phase) in starts:
            pairs[named, phase] = (starts[named, phase], row)
    return pairs


def flow_between(
    kind: str, start: Mapping[str, Any], end: Mapping[str, Any], names: Collection[str] = ()
) -> Flow:
    """Return what the counters of a kind saw from one edge to the next.

    ``names`` limits the devices: interfaces, RDMA ports (``mlx5_0`` or ``mlx5_0/1``) or
    GPU indices; one that is named and not counted makes the kind unavailable.
    """
    layout = _LAYOUTS[kind]
    seconds = max(0.0, (end.get("mono_ns", 0) - start.get("mono_ns", 0)) / 1e9)
    before, after = start.get(layout.section) or {}, end.get(layout.section) or {}
    chosen = [name for name in before if not names or any(_is_named(name, n) for n in names)]
    missing = [n for n in names if not any(_is_named(name, n) for name in chosen)]
    if missing or not chosen:
        said = (start.get("unavailable") or {}).get(layout.section)
        reason = said or f"no counter of {missing[0] if missing else layout.section}"
        return Flow(kind, None, None, seconds, str(reason), dict.fromkeys(chosen, 0))
    received, sent, reasons = {}, 0, []
    for name in chosen:
        rx, why = _delta(name, layout.received, before[name], after.get(name) or {})
        tx, why_tx = _delta(name, layout.sent, before[name], after.get(name) or {})
        reasons += [text for text in (why, why_tx) if text]
        received[name] = (rx or 0) * layout.unit_bytes
        sent += (tx or 0) * layout.unit_bytes
    packets = {
        counter: [_delta(n, counter, before[n], after.get(n) or {})[0] for n in chosen]
        for counter in (_PACKETS, _PACKETS_SENT)
    }
    return Flow(
        kind,
        None if reasons else sum(received.values()),
        None if reasons else sent,
        seconds,
        "; ".join(dict.fromkeys(reasons)),
        received,
        {n: str(before[n]["link_layer"]) for n in chosen if before[n].get("link_layer")},
        _sum_if_all(packets[_PACKETS]),
        _sum_if_all(packets[_PACKETS_SENT]),
    )


def _sum_if_all(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _is_named(device: str, name: str) -> bool:
    name = name.replace(":", "/")
    return device == name or device.rpartition("/")[0] == name


def _delta(
    device: str, counter: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[int | None, str]:
    first, last = before.get(counter), after.get(counter)
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
    name = f"{flow.kind}_bytes"
    layout = _LAYOUTS[flow.kind]
    is_sender = side == "prefill"
    carried = flow.sent_bytes if is_sender else flow.received_bytes
    where = flow.where.removesuffix(layout.received) + layout.sent if is_sender else flow.where
    if payload_bytes <= 0:
        return Check(name, None, "a payload", "no payload moved", where)
    least = tolerances.carried_at_least * payload_bytes
    most = tolerances.not_carried_at_most * payload_bytes
    most += tolerances.idle_bytes_per_s * flow.seconds
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
    is_doubtful = ok and flow.kind == "nic" and bool(hint)
    return Check(name, None if is_doubtful else ok, expected, seen, where)


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
    packets, counter = (
        (flow.packets_sent, _PACKETS_SENT) if side == "prefill" else (flow.packets, _PACKETS)
    )
    if flow.kind != "nic" or flow.received_bytes is not None or packets is None:
        return None
    least = tolerances.carried_at_least * payload_bytes
    most = tolerances.not_carried_at_most * payload_bytes
    most += tolerances.idle_bytes_per_s * flow.seconds
    bound = math.ceil(least / MAX_MTU_BYTES) if must_carry else int(most / MAX_MTU_BYTES)
    expected = f"at {'least' if must_carry else 'most'} {bound} packets"
    ok: bool | None = packets >= bound if must_carry else packets <= bound or None
    if payload_bytes <= 0:
        ok, expected = None, "a payload"
    where = f"{_LAYOUTS[flow.kind].section}/{'+'.join(flow.devices)} {counter}"
    return Check("nic_packets", ok, expected, f"{packets} packets", where)


def early_check(
    claim: Claim,
    start: Mapping[str, Any],
    end: Mapping[str, Any],
    payload_bytes: int,
    tolerances: Tolerances | None = None,
) -> list[Check]:
    """Check a road from the counters of one phase, before use counts are printed.

    One check per kind that can tell; kinds in ``claim.counters`` must have carried the
    payload, the others must not. ``tolerances`` default to the claim's own.
    """
    checks: list[Check | None] = []
    for kind in KINDS:
        if own_traffic(claim, kind):
            continue
        flow = flow_between(kind, start, end, watched(claim, kind))
        asked = (flow, payload_bytes, kind in claim.counters, tolerances or claim, claim.side)
        checks += [weigh(*asked), weigh_packets(*asked)]
    return [check for check in checks if check is not None and check.ok is not None]


def parse_net_dev(text: str) -> dict[str, dict[str, int]]:
    """Read ``/proc/net/dev``: interface to ``rx_bytes`` and ``tx_bytes``."""
    counters = {}
    for line in text.splitlines():
        name, colon, numbers = line.rpartition(":")
        fields = numbers.split()
        if colon and len(fields) >= 9 and all(f.isdigit() for f in fields):
            counters[name.strip()] = {"rx_bytes": int(fields[0]), "tx_bytes": int(fields[8])}
    return counters


def parse_counter(text: str) -> int | None:
    """Read a counter file of sysfs; None for ``N/A`` and whatever is no whole number."""
    text = text.strip()
    return int(text) if text.isdigit() else None


def parse_nvlink(text: str) -> dict[str, dict[str, int | None]]:
    """Read ``nvidia-smi nvlink -gt d``: GPU index to the sums ``rx_kib`` and ``tx_kib``.

    ``Link 0: Data Tx: 5 KiB`` and ``Link 0: Rx0: 5 KiB, Tx0: 6 KiB`` are known forms. A sum
    is None where a link says ``N/A`` or none is counted.
    """
    counters: dict[str, dict[str, int | None]] = {}
    unknown: set[tuple[str, str]] = set()
    gpu = ""
    for line in text.splitlines():
        if header := _GPU.match(line.strip()):
            gpu = header[1]
            counters[gpu] = {"rx_kib": None, "tx_kib": None}
        elif gpu and (link := _LINK.match(line.strip())):
            for side, value in _LINK_COUNTER.findall(link[2]):
                key = f"{side.lower()}_kib"
                if value == "N/A":
                    unknown.add((gpu, key))
                else:
                    counters[gpu][key] = (counters[gpu][key] or 0) + int(value)
    for gpu, key in unknown:
        counters[gpu][key] = None
    return counters
