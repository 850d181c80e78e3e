"""What follows from a log's tables and environment together, where no single line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvroad.evidence.log import Record
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import ProtocolRow
from kvroad.proof.diagnose import Diagnosis
from kvroad.proof.engine_logs import LogReading, RoadTable

__all__ = ["AS_CLAIMED", "NOT_AS_MEANT", "NO_ROAD", "SHOWN", "LogFinding", "examine_log"]

AS_CLAIMED, NOT_AS_MEANT = "as claimed", "not as meant"
SHOWN, NO_ROAD = "shown", "no road shown"

# Entries of UCX_TLS that carry no cache between processes: copies within one, and loopback.
_NO_ROADS = frozenset({"self", "cuda_copy", "gdr_copy", "rocm_copy", "ze_copy"})
# Roads that an alias in UCX_TLS stands for (UCX 1.23, ucp_context.c).
_RC, _DC = {"rc_mlx5", "rc_verbs"}, {"dc_mlx5"}
_ALIASES = {
    "rc": _RC,
    "rc_x": {"rc_mlx5"},
    "rc_v": {"rc_verbs"},
    "dc": _DC,
    "dc_x": _DC,
    "ib": {*_RC, *_DC, "srd"},
    "sm": {"cma", "knem", "xpmem"},
    "shm": {"cma", "knem", "xpmem"},
    "cuda": {"cuda_ipc"},
}
_CMA, _CUDA_IPC = "cma/memory", "cuda_ipc/cuda"
_NAMESPACES = "separate PID namespaces"
# Causes for which a transport that was to be had was not.
_LOST_ROADS = ("transport not available", "nothing usable", "driver missing", _NAMESPACES)
_HOW_TO_SEE = (
    "start the engines with UCX_LOG_LEVEL=info and UCX_PROTO_INFO=y and take their logs again"
)
_NAME_A_TRANSPORT = (
    "name a transport that the hosts have in UCX_TLS, such as rc,cuda_copy,cuda_ipc, or leave "
    "UCX_TLS unset"
)
_LOOK_FOR = (
    "look for what is faster on these hosts: ucx_info -d lists devices, kvroad doctor "
    "host=… transport=… tries one"
)


@dataclass
class LogFinding:
    """What one log shows, against what was claimed or what UCX_TLS asks for.

    ``entries`` are those of ``UCX_TLS`` that could carry the cache; empty where UCX was
    free to choose, or where its environment is not shown.
    """

    reading: LogReading
    status: str
    road: str
    row: ProtocolRow | None
    sentence: str
    entries: tuple[str, ...] = ()
    causes: list[Diagnosis] = field(default_factory=list)


def examine_log(reading: LogReading, roads: Sequence[str] = ()) -> LogFinding:
    """Say which road a log shows; ``roads`` are those of the claimed transport, if there is one."""
    road, row, kind = reading.road()
    entries = _entries(reading)
    finding = LogFinding(reading, NO_ROAD, road, row, "", entries, list(reading.causes))
    if kind is None:
        finding.sentence = _no_table(reading)
    elif row is None:
        finding.sentence = (
            "the road depends on the size of a descriptor, which the log does not tell: "
            + "; ".join(f"{_range(r)} {r}" for r in kind.table.rows)
        )
    else:
        deed = "read" if kind.table.operation == "read" else "written"
        memory = "GPU memory" if kind.table.local_memory != "host" else "host memory"
        finding.sentence = f"the cache is {deed} over {road}, {row}, from and to {memory}"
        finding.causes = [*_deduced(reading, row, kind, entries), *finding.causes]
        finding.status = _status(finding, row, roads)
        if finding.status == NOT_AS_MEANT and (shut := _shut_out(reading, roads, entries)):
            finding.causes.insert(0, shut)
    if failed := reading.transfers.failed + reading.transfers.expired:
        finding.status = NOT_AS_MEANT
        finding.sentence += f"; {failed} transfers failed or expired"
    finding.causes.sort(key=lambda cause: cause.is_possible)
    return finding


def _entries(reading: LogReading) -> tuple[str, ...]:
    for line in reversed(reading.environments):
        entries = line.variables.get("UCX_TLS", "").split(",")
        if entries[0].startswith("^") or "all" in entries:
            return ()
        return tuple(entry for entry in entries if entry and entry not in _NO_ROADS)
    return ()


def _status(finding: LogFinding, row: ProtocolRow, roads: Sequence[str]) -> str:
    is_tcp = set(row.transports) == {"tcp"}
    if roads:
        is_right = set(finding.road.split("+")) <= set(roads) and not row.is_detour
        return AS_CLAIMED if is_right else NOT_AS_MEANT
    # Without a claim, what UCX_TLS asks for besides tcp is one, and so is a road that was lost.
    has_lost = any(cause.name in _LOST_ROADS for cause in finding.causes if not cause.is_possible)
    if is_tcp and (has_lost or set(finding.entries) - {"tcp"}):
        return NOT_AS_MEANT
    return NOT_AS_MEANT if row.is_detour else SHOWN


def _deduced(
    reading: LogReading, row: ProtocolRow, kind: RoadTable, entries: tuple[str, ...]
) -> list[Diagnosis]:
    """Find causes of a road that emulates, which no single line of the log gives."""
    found = []
    if row.is_emulation and row.transports == ("tcp",):
        apart = _separate_namespaces(reading, kind)
        found.append(apart or _why_tcp(reading, row, entries))
    lanes = next((x for x in reading.lanes if x.scope != "self" and x.has(_CUDA_IPC)), None)
    if lanes is not None and kind.table.local_memory == "cuda" and row.is_emulation:
        found.append(
            _diagnosis(
                "cuda_ipc is connected and not used for the cache: GPUs without NVLink, separate "
                "PID namespaces (two pods), or memory that cuda_ipc cannot share",
                "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y or push instead of pull; share the PID "
                "namespace; unset expandable_segments",
                lanes,
                report="vllm-project/vllm#52607, vllm-project/vllm#55906, ai-dynamo/nixl#1754",
            )
        )
    return [cause for cause in found if cause is not None]


def _diagnosis(
    cause: str, fix: str, by: Record, report: str | None = None, name: str = ""
) -> Diagnosis:
    """Return what follows from a record; with a report, empty or not, it is only possible."""
    quote = redact_text(by.text.strip())
    return Diagnosis(cause, fix, by.where, quote, report is not None, report or "", name)


def _separate_namespaces(reading: LogReading, kind: RoadTable) -> Diagnosis | None:
    """Say that the peer is in another PID namespace.

    UCX then has cma between the workers of its own process, and not to a peer of which it
    says that it is on the same node; nothing is logged as an error.
    """
    table = kind.table
    has_cma = any(lanes.has(_CMA) for lanes in reading.lanes)
    to_peer = [
        lanes
        for lanes in reading.lanes
        if (lanes.scope, lanes.configuration) == (table.scope, table.configuration)
    ]
    if table.scope != "intra-node" or not has_cma or not to_peer or to_peer[0].has(_CMA):
        return None
    return _diagnosis(
        "the engines are on one node and in separate PID namespaces, as in two pods: cma is there "
        "and does not reach the peer",
        "let them share one (hostPID or shareProcessNamespace in a pod, --pid=host or "
        "--pid=container:NAME with docker), or use a road that needs none",
        to_peer[0],
        name=_NAMESPACES,
    )


def _shut_out(
    reading: LogReading, roads: Sequence[str], entries: tuple[str, ...]
) -> Diagnosis | None:
    """Say that UCX_TLS leaves none of the claimed roads open; TCP alone is told elsewhere."""
    others = [entry for entry in entries if entry != "tcp"]
    allowed = {road for entry in entries for road in _ALIASES.get(entry, {entry})}
    if not roads or not others or allowed & set(roads):
        return None
    return _diagnosis(
        f"UCX_TLS allows {', '.join(entries)} and so none of {', '.join(roads)}",
        f"add one of {', '.join(roads)} to UCX_TLS, or leave it unset",
        reading.environments[-1],
    )


def _why_tcp(reading: LogReading, row: ProtocolRow, entries: tuple[str, ...]) -> Diagnosis | None:
    """Say why a cache went over TCP; None where a line of the log has said so already."""
    if not reading.environments:
        return _diagnosis(
            "UCX was told so or found nothing faster: which of the two, its environment line "
            "would say, and it is not in this log",
            f"set UCX_LOG_LEVEL=info to see it; {_LOOK_FOR}",
            row,
            report="",
        )
    environment = reading.environments[-1]
    others = [entry for entry in entries if entry != "tcp"]
    if entries and not others:
        return _diagnosis(
            "UCX_TLS allows TCP alone, so every byte goes through the CPUs of both engines",
            _NAME_A_TRANSPORT,
            environment,
        )
    if not entries:
        return _diagnosis(
            "UCX was free to choose and found nothing faster than TCP between the engines",
            _LOOK_FOR,
            row,
            report="",
        )
    if reading.causes:
        return None
    return _diagnosis(
        f"UCX_TLS allows {', '.join(others)} too, and UCX did not use it between these engines: "
        "two hosts or separate PID namespaces (two pods) for what joins processes of one host, a "
        "link or GID that is down for RDMA",
        "run kvroad doctor host=… transport=… there; let pods share host and PID namespace",
        environment,
        report="vllm-project/vllm#55906",
    )


def _no_table(reading: LogReading) -> str:
    if reading.n_other_tables:
        return (
            "this process posts no transfers of the cache: the log of the other engine "
            "(decode, where the cache is pulled) shows the road"
        )
    if reading.transfers.transfers:
        return f"transfers were made, and no table of UCX tells their road: {_HOW_TO_SEE}"
    if reading.environments or reading.versions:
        return (
            "UCX printed no table: nothing was transferred, the process was killed (UCX_PROTO_INFO="
            f"used prints at a clean end only), or UCX_PROTO_INFO is not set; {_HOW_TO_SEE}"
        )
    return f"no line of UCX is in this log: {_HOW_TO_SEE}"


def _range(row: ProtocolRow) -> str:
    high = "" if row.max_bytes is None else f" to {row.max_bytes:,}"
    return f"{row.min_bytes:,}{high or ' and more'} bytes:"
