"""Witnesses that count bytes: interfaces, NICs and NVLink, at one host or at both ends."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from kvroad.evidence.counter import (
    CounterKind,
    Flow,
    add_flows,
    counter_kinds,
    flow_between,
    phase_edges,
)
from kvroad.evidence.weigh import weigh, weigh_packets
from kvroad.plan import Claim
from kvroad.proof.raw import Evidence, FarEnd
from kvroad.proof.witness import (
    AGREES,
    CONTRADICTS,
    UNAVAILABLE,
    Witness,
    WitnessKind,
)
from kvroad.study.kinds import BACKENDS

__all__ = ["KINDS", "byte_counter"]


def byte_counter(kind: CounterKind, unit: str, evidence: Evidence) -> Witness | None:
    """Hold one kind of byte counter, summed over the phases, against the bytes moved.

    Where the halves are on two hosts, the counters of both must agree. ``unit`` is
    ``bytes``, or ``packets`` for devices that count these and no bytes; None: there are none.
    """
    payload = evidence.payload
    backend = BACKENDS[evidence.claim.backend]
    devices = backend.devices(evidence.posting_logs, evidence.claim)
    named = {device.replace(":", "/") for device in devices}
    near = FarEnd(evidence.claim, evidence.edges, "counters.jsonl")
    found = _count_end(kind, unit, near, payload, evidence.cell, named)
    if found is None or evidence.far is None:
        return found
    far = _count_end(kind, unit, evidence.far, payload, evidence.cell, named)
    return found if far is None else _both_ends(found, far, evidence.roles)


def _count_end(
    kind: CounterKind,
    unit: str,
    end: FarEnd,
    payload: Mapping[tuple[str, str], int],
    cell: str | None,
    named: set[str],
) -> Witness | None:
    """Weigh what one host counted over all phases; None: it has no counters in this unit."""
    claim, name = end.claim, f"{kind.name}_{unit}"
    pairs = phase_edges(end.edges, cell)
    lost = [f"{phase} of {which}" for which, phase in payload if (which, phase) not in pairs]
    why = kind.own_traffic(claim)
    if not why and (lost or not payload):
        why = f"no counters at both edges of {lost[0] if lost else 'any phase'}"
    if why:
        return Witness(name, UNAVAILABLE, "", why, end.file) if unit == "bytes" else None
    flow = add_flows([flow_between(kind, *pairs[key], kind.devices(claim)) for key in payload])
    total = sum(payload.values())
    terms = (flow, total, kind.name in claim.counters, claim, claim.side)
    check = weigh(*terms) if unit == "bytes" else weigh_packets(*terms)
    if check is None:
        return None
    status = {True: AGREES, False: CONTRADICTS, None: UNAVAILABLE}[check.ok]
    expected, seen = check.expected, check.seen
    if status == AGREES and _is_blind(flow, total, claim):
        # A load on serving engines takes long: what may be idle traffic hides the payload.
        status = UNAVAILABLE
        seen = f"{seen}, which is no proof: idle traffic alone may be as much as the payload"
    wrong = _wrong_link_layer(flow, total, claim, named)
    if wrong and status != CONTRADICTS:
        status, expected, seen = CONTRADICTS, f"link layer {claim.link_layer}", wrong
    return Witness(name, status, expected, seen, f"{end.file} {check.where}")


def _is_blind(flow: Flow, payload_bytes: int, claim: Claim) -> bool:
    if claim.serving is None or flow.kind.name in claim.counters:
        return False
    allowed = claim.not_carried_at_most * payload_bytes + claim.idle_bytes_per_s * flow.seconds
    return allowed >= claim.carried_at_least * payload_bytes


def _both_ends(near: Witness, far: Witness, roles: tuple[str, str]) -> Witness:
    """Let the worse of the two ends speak, and both where they say the same."""
    order = (CONTRADICTS, UNAVAILABLE, AGREES)
    worse = min((near, far), key=lambda witness: order.index(witness.status))
    if near.status != far.status:
        role = roles[0] if worse is near else roles[1]
        return replace(worse, seen=f"{worse.seen} at the {role} host")
    seen = f"{near.seen} at the {roles[0]} host, {far.seen} at the {roles[1]} host"
    return replace(near, seen=seen, where=f"{near.where}, {far.where}")


def _wrong_link_layer(flow: Flow, payload_bytes: int, claim: Claim, named: set[str]) -> str:
    """Name a port that carried payload and is not of the claimed link layer, else ``""``.

    Counters say which ports carried; those without bytes are the ones that the logs name.
    """
    if claim.link_layer is None or flow.kind.name not in claim.counters:
        return ""
    for port, layer in flow.link_layers.items():
        carried = port in named or (
            flow.received_bytes is not None
            and flow.devices.get(port, 0) > claim.not_carried_at_most * payload_bytes
        )
        if carried and layer.lower() != claim.link_layer.lower():
            return f"the payload on port {port}, whose link layer is {layer}"
    return ""


def _expected(kind: CounterKind, claim: Claim) -> str:
    devices = ", ".join(kind.device_title.format(name) for name in kind.devices(claim))
    if kind.name in claim.counters:
        where = devices or f"all {kind.title} of the host"
        return f"at least {claim.carried_at_least:.0%} of the payload ({where})"
    return f"at most {claim.not_carried_at_most:.0%} of the payload ({devices})" if devices else ""


def _reason(kind: CounterKind, evidence: Evidence, witness: Witness) -> str:
    """Say what was counted; where the logs show the claimed road, another program was there."""
    expected = f"expected {witness.expected} ({witness.where})"
    reason = f"{kind.name} counters saw {witness.seen}, {expected}"
    is_claimed = set(evidence.seen_road().split("+")) <= set(evidence.claim.roads)
    if is_claimed and witness.name.endswith("_bytes") and witness.expected.startswith("at most"):
        backend = evidence.claim.backend.upper()
        reason += f": {backend} tells of no such road, "
        reason += "so another program may have used it meanwhile"
    return reason


def _kind(kind: CounterKind, unit: str) -> WitnessKind:
    return WitnessKind(
        name=f"{kind.name}_{unit}",
        hear=functools.partial(byte_counter, kind, unit),
        expected=functools.partial(_expected, kind) if unit == "bytes" else lambda claim: "",
        place=40,
        proves_road=True,
        is_shared=kind.is_shared,
        reason=functools.partial(_reason, kind),
    )


KINDS = tuple(
    _kind(kind, unit)
    for kind in counter_kinds().values()
    for unit in ("bytes", *(("packets",) if kind.packets else ()))
)
"""A witness for each kind of counter, and one for packets where devices may count no bytes."""
