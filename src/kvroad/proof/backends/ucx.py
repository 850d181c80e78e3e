"""Backend ``ucx``: which of its tables and rows tell the road, and which road they show."""

from __future__ import annotations

from collections.abc import Sequence

from kvroad.errors import UserError, nearest
from kvroad.evidence.log import ProcessLog
from kvroad.evidence.ucx import parse_file
from kvroad.evidence.ucx_records import ProtocolRow, ProtocolTable, UcxLog
from kvroad.plan import Claim
from kvroad.study.fields import Engine, Transport
from kvroad.study.kinds import Backend
from kvroad.study.ucx import UCX_TRANSPORTS, check_ucx_tls, sees_cuda

__all__ = [
    "UCX",
    "is_claimed",
    "is_on_road",
    "memory_type",
    "road_tables",
    "seen_road",
]


def road_tables(log: ProcessLog | None, claim: Claim) -> list[ProtocolTable]:
    """Return the tables that tell the road: right operation and memory, to another process."""
    memory = memory_type(claim)
    return [
        table
        for table in (log.tables if isinstance(log, UcxLog) else ())
        if table.operation == claim.operation
        and table.scope != "self"
        and table.local_memory == table.remote_memory == memory
    ]


def is_on_road(row: ProtocolRow, claim: Claim) -> bool:
    """Return whether a row runs wholly on claimed roads.

    Emulation is the peer's CPU answering messages, so no road of an RDMA device.
    """
    transports = row.transports
    return bool(transports) and set(transports) <= set(claim.roads) and not row.is_detour


def is_claimed(row: ProtocolRow, claim: Claim) -> bool:
    """Return whether a row holds the descriptor size and runs on claimed roads."""
    return row.holds(claim.descriptor_bytes) and is_on_road(row, claim)


def memory_type(claim: Claim) -> str:
    """Return the memory type as UCX prints it: ``host`` or ``cuda``."""
    return {"DRAM": "host", "VRAM": "cuda"}.get(claim.memory, claim.memory.lower())


def seen_road(logs: Sequence[ProcessLog], claim: Claim) -> str:
    """Name the road that UCX's tables show, ``unknown`` where they show none.

    Rows with a use count tell; without counts the row that holds the descriptor size.
    """
    names: dict[str, None] = {}
    for log in logs:
        tables = road_tables(log, claim)
        rows = [row for table in tables for row in table.rows if row.count]
        if not rows:
            rows = [r for r in (t.row_for(claim.descriptor_bytes) for t in tables) if r]
        for row in rows:
            names.update(dict.fromkeys(row.roads))
    return "+".join(names) or "unknown"


def _devices(logs: Sequence[ProcessLog], claim: Claim) -> set[str]:
    tables = (table for log in logs for table in road_tables(log, claim))
    rows = (row for table in tables for row in table.rows if is_claimed(row, claim))
    return {share.device for row in rows for share in row.shares}


def _environment(transport: Transport, engine: Engine) -> dict[str, str]:
    return {
        "UCX_LOG_LEVEL": "info",
        # Serving engines may be killed at their end, which use counts do not survive.
        "UCX_PROTO_INFO": "used" if engine.serving is None else "y",
        "UCX_TLS": ",".join(transport.ucx_tls),
    }


def _check(where: str, transport: Transport, memory: str) -> None:
    for road in transport.roads:
        if road not in UCX_TRANSPORTS:
            words = sorted(UCX_TRANSPORTS)
            hint = f"{nearest(road, words)} (allowed: {', '.join(words)})"
            raise UserError(f"{where}.roads: {road!r} is not allowed{hint}")
    entries = transport.ucx_tls
    check_ucx_tls(entries, f"{where}.ucx_tls")
    if memory == "VRAM" and not sees_cuda(entries):
        raise UserError(
            f"{where}.ucx_tls: UCX sees no GPU memory without cuda_copy; "
            f"set {where}.ucx_tls=[{','.join([*entries, 'cuda_copy'])}]"
        )


UCX = Backend(
    name="ucx",
    prefix="UCX_",
    environment=_environment,
    check=_check,
    parse=parse_file,
    seen_road=seen_road,
    devices=_devices,
)
