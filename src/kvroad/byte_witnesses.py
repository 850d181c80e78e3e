"""Witnesses that count bytes: interfaces, NICs and NVLink, at one host or at both ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvroad.evidence.counters import Flow, add_flows, flow_between, phase_edges, watched, weigh
from kvroad.plan import Claim
from kvroad.witnesses import AGREES, CONTRADICTS, UNAVAILABLE, Evidence, FarEnd, Witness

__all__ = ["byte_counter"]


def byte_counter(kind: str, evidence: Evidence) -> Witness:
    """Hold one kind of byte counter, summed over the phases, against the bytes moved.

    Where the halves are on two hosts, the counters of both must agree.
    """
    payload: dict[tuple[str, str], int] = {}
    for pull in evidence.cell_pulls():
        key = (pull.cell, pull.phase)
        payload[key] = payload.get(key, 0) + (pull.bytes_moved or 0)
    near = FarEnd(evidence.claim, evidence.edges, "counters.jsonl")
    found = _count_end(kind, near, payload, evidence.cell)
    if evidence.far is None:
        return found
    other = _count_end(kind, evidence.far, payload, evidence.cell)
    return _both_ends(found, other, evidence.roles)


def _count_end(
    kind: str, end: FarEnd, payload: Mapping[tuple[str, str], int], cell: str | None
) -> Witness:
    claim, name = end.claim, f"{kind}_bytes"
    pairs = phase_edges(end.edges, cell)
    lost = [f"{phase} of {named}" for named, phase in payload if (named, phase) not in pairs]
    if lost or not payload:
        seen = f"no counters at both edges of {lost[0] if lost else 'any phase'}"
        return Witness(name, UNAVAILABLE, "", seen, end.file)
    flow = add_flows([flow_between(kind, *pairs[key], watched(claim, kind)) for key in payload])
    total = sum(payload.values())
    check = weigh(flow, total, kind in claim.counters, claim, claim.side)
    status = {True: AGREES, False: CONTRADICTS, None: UNAVAILABLE}[check.ok]
    where = f"{end.file} {check.where}"
    wrong = _wrong_link_layer(flow, total, claim) if kind == "nic" else ""
    if wrong and status == AGREES:
        return Witness(name, CONTRADICTS, f"link layer {claim.link_layer}", wrong, where)
    return Witness(name, status, check.expected, check.seen, where)


def _both_ends(near: Witness, far: Witness, roles: tuple[str, str]) -> Witness:
    """Let the worse of the two ends speak, and both where they say the same."""
    order = (CONTRADICTS, UNAVAILABLE, AGREES)
    worse = min((near, far), key=lambda witness: order.index(witness.status))
    if near.status != far.status:
        role = roles[0] if worse is near else roles[1]
        return replace(worse, seen=f"{worse.seen} at the {role} host")
    seen = f"{near.seen} at the {roles[0]} host, {far.seen} at the {roles[1]} host"
    return replace(near, seen=seen, where=f"{near.where}, {far.where}")


def _wrong_link_layer(flow: Flow, payload_bytes: int, claim: Claim) -> str:
    """Name a port that carried payload and is not of the claimed link layer, else ``""``."""
    if claim.link_layer is None or "nic" not in claim.counters:
        return ""
    for port, layer in flow.link_layers.items():
        carried = flow.received_bytes is None or (
            flow.devices.get(port, 0) > claim.not_carried_at_most * payload_bytes
        )
        if carried and layer.lower() != claim.link_layer.lower():
            return f"port {port} has link layer {layer}"
    return ""
