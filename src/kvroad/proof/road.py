"""Which of UCX's tables and rows tell the road, and which road they show."""

from __future__ import annotations

from kvroad.evidence.ucx_records import ProtocolRow, ProtocolTable, UcxLog
from kvroad.plan import Claim
from kvroad.proof.raw import Evidence

__all__ = ["is_claimed", "is_on_road", "memory_type", "road_tables", "seen_road", "transfer_word"]


def road_tables(log: UcxLog | None, claim: Claim) -> list[ProtocolTable]:
    """Return the tables that tell the road: right operation and memory, to another process."""
    memory = memory_type(claim)
    return [
        table
        for table in (log.tables if log else ())
        if table.operation == claim.operation
        and table.scope != "self"
        and table.local_memory == table.remote_memory == memory
    ]


def is_on_road(row: ProtocolRow, claim: Claim) -> bool:
    """Return whether a row runs wholly on claimed roads.

    Emulation is the peer's CPU answering messages, so no road of an RDMA device; over
    TCP it is how a remote read is done.
    """
    transports = row.transports
    if not transports or not set(transports) <= set(claim.roads):
        return False
    return not row.is_emulation or transports == ("tcp",)


def is_claimed(row: ProtocolRow, claim: Claim) -> bool:
    """Return whether a row holds the descriptor size and runs on claimed roads."""
    return row.holds(claim.descriptor_bytes) and is_on_road(row, claim)


def memory_type(claim: Claim) -> str:
    """Return the memory type as UCX prints it: ``host`` or ``cuda``."""
    return {"DRAM": "host", "VRAM": "cuda"}.get(claim.memory, claim.memory.lower())


def transfer_word(claim: Claim) -> str:
    """Return what the claim's transfers are called in a sentence."""
    return "reads" if claim.operation == "read" else "writes"


def seen_road(evidence: Evidence) -> str:
    """Name the road that UCX's tables show, ``unknown`` where they show none.

    Rows with a use count tell; without counts the row that holds the descriptor size.
    """
    claim = evidence.claim
    names: dict[str, None] = {}
    for file in evidence.initiators:
        tables = road_tables(evidence.logs.get(file), claim)
        rows = [row for table in tables for row in table.rows if row.count]
        if not rows:
            rows = [r for r in (t.row_for(claim.descriptor_bytes) for t in tables) if r]
        for row in rows:
            is_plain = not row.is_emulation or row.transports == ("tcp",)
            suffix = "" if is_plain else " (software emulation)"
            names.update(dict.fromkeys(t + suffix for t in row.transports))
    return "+".join(names) or "unknown"
