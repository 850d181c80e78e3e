"""Witnesses that count bytes: interfaces, NICs and NVLink, at one host or at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvroad.evidence.counters import (
    Flow,
    add_flows,
    flow_between,
    own_traffic,
    phase_edges,
    watched,
    weigh,
    weigh_packets,
)
from kvroad.plan import Claim
from kvroad.proof.raw import Evidence, FarEnd
from kvroad.proof.road import is_on_road, road_tables
from kvroad.proof.witness import AGREES, CONTRADICTS, UNAVAILABLE, Witness

__all__ = ["byte_counter"]


def byte_counter(kind: str, evidence: Evidence) -> tuple[Witness, ...]:
    """Hold one kind of byte counter, summed over the phases, against the bytes moved.

    Where the halves are on two hosts, the counters of both must agree. Ports that count
    packets and no bytes bear a second witness, ``nic_packets``.
    """
    payload = evidence.payload()
    named = {device.replace(":", "/") for device in _devices(evidence)}
    near = FarEnd(evidence.claim, evidence.edges, "counters.jsonl")
    found = _count_end(kind, near, payload, evidence.cell, named)
    if evidence.far is None:
        return tuple(found.values())
    other = _count_end(kind, evidence.far, payload, evidence.cell, named)
    return tuple(
        _both_ends(found[name], other[name], evidence.roles) if name in other else found[name]
        for name in found
    )


def _count_end(
    kind: str,
    end: FarEnd,
    payload: Mapping[tuple[str, str], int],
    cell: str | None,
    named: set[str],
) -> dict[str, Witness]:
    claim, name = end.claim, f"{kind}_bytes"
    if why := own_traffic(claim, kind):
        return {name: Witness(name, UNAVAILABLE, "", why, end.file)}
    pairs = phase_edges(end.edges, cell)
    lost = [f"{phase} of {which}" for which, phase in payload if (which, phase) not in pairs]
    if lost or not payload:
        seen = f"no counters at both edges of {lost[0] if lost else 'any phase'}"
        return {name: Witness(name, UNAVAILABLE, "", seen, end.file)}
    flow = add_flows([flow_between(kind, *pairs[key], watched(claim, kind)) for key in payload])
    total = sum(payload.values())
    asked = (flow, total, kind in claim.counters, claim, claim.side)
    wrong = _wrong_link_layer(flow, total, claim, named) if kind == "nic" else ""
    witnesses = {}
    for check in (weigh(*asked), weigh_packets(*asked)):
        if check is None:
            continue
        status = {True: AGREES, False: CONTRADICTS, None: UNAVAILABLE}[check.ok]
        expected, seen = check.expected, check.seen
        if status == AGREES and _is_blind(flow, total, kind, claim):
            # A load on serving engines takes long: what may be idle traffic hides the payload.
            status = UNAVAILABLE
            seen = f"{seen}, which is no proof: idle traffic alone may be as much as the payload"
        if wrong and status != CONTRADICTS:
            status, expected, seen = CONTRADICTS, f"link layer {claim.link_layer}", wrong
        where = f"{end.file} {check.where}"
        witnesses[check.kind] = Witness(check.kind, status, expected, seen, where)
    return witnesses


def _is_blind(flow: Flow, payload_bytes: int, kind: str, claim: Claim) -> bool:
    if claim.serving is None or kind in claim.counters:
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

    Counters say which ports carried; those without bytes are the ones that UCX's rows name.
    """
    if claim.link_layer is None or "nic" not in claim.counters:
        return ""
    for port, layer in flow.link_layers.items():
        carried = port in named or (
            flow.received_bytes is not None
            and flow.devices.get(port, 0) > claim.not_carried_at_most * payload_bytes
        )
        if carried and layer.lower() != claim.link_layer.lower():
            return f"the payload on port {port}, whose link layer is {layer}"
    return ""


def _devices(evidence: Evidence) -> Iterator[str]:
    """Yield the devices of the claimed rows."""
    for file in evidence.initiators:
        for table in road_tables(evidence.logs.get(file), evidence.claim):
            size = evidence.claim.descriptor_bytes
            rows = (r for r in table.rows if r.holds(size) and is_on_road(r, evidence.claim))
            yield from (share.device for row in rows for share in row.shares)
