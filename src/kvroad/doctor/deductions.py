"""What follows from a log's tables and environment together, where no single line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvroad.diagnose import Diagnosis
from kvroad.doctor.logs import LogReading
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import ProtocolRow

__all__ = ["AS_CLAIMED", "NOT_AS_CLAIMED", "NO_ROAD", "SHOWN", "LogFinding", "examine_log"]

AS_CLAIMED, NOT_AS_CLAIMED = "as claimed", "not as claimed"
SHOWN, NO_ROAD = "shown", "no road shown"

# Entries of UCX_TLS that carry no cache between processes: copies within one, and loopback.
_NO_ROADS = frozenset({"self", "cuda_copy", "gdr_copy", "rocm_copy", "ze_copy"})
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

    ``asked`` are the entries of ``UCX_TLS`` that could carry the cache; empty where UCX was
    free to choose, or where its environment is not shown.
    """

    reading: LogReading
    status: str
    road: str
    row: ProtocolRow | None
    sentence: str
    asked: tuple[str, ...] = ()
    causes: list[Diagnosis] = field(default_factory=list)

    @property
    def is_posting(self) -> bool:
        """Whether the log is of a process that posts transfers."""
        return self.road != "none"


def examine_log(reading: LogReading, roads: Sequence[str] = ()) -> LogFinding:
    """Say which road a log shows; ``roads`` are those of the claimed transport, if there is one."""
    road, row, kind = reading.road()
    asked = _asked(reading)
    finding = LogFinding(reading, NO_ROAD, road, row, "", asked, list(reading.causes))
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
        finding.status = _status(reading, row, road, roads, asked)
        finding.causes = [*_deduced(reading, row, road, asked), *finding.causes]
    if failed := reading.transfers.failed + reading.transfers.expired:
        finding.status = NOT_AS_CLAIMED
        finding.sentence += f"; {failed} transfers failed or expired"
    finding.causes.sort(key=lambda one: one.is_possible)
    return finding


def _asked(reading: LogReading) -> tuple[str, ...]:
    for line in reversed(reading.environments):
        entries = line.variables.get("UCX_TLS", "").split(",")
        if entries[0].startswith("^") or "all" in entries:
            return ()
        return tuple(entry for entry in entries if entry and entry not in _NO_ROADS)
    return ()


def _status(
    reading: LogReading,
    row: ProtocolRow,
    road: str,
    roads: Sequence[str],
    asked: tuple[str, ...],
) -> str:
    is_tcp = set(row.transports) == {"tcp"}
    if roads:
        is_right = set(road.split("+")) <= set(roads) and (not row.is_emulation or is_tcp)
        return AS_CLAIMED if is_right else NOT_AS_CLAIMED
    # Without a claim, what UCX_TLS asks for besides tcp is one.
    has_lost = any(not cause.is_possible for cause in reading.causes)
    if is_tcp and (has_lost or set(asked) - {"tcp"}):
        return NOT_AS_CLAIMED
    return NOT_AS_CLAIMED if row.is_emulation and not is_tcp else SHOWN


def _deduced(
    reading: LogReading, row: ProtocolRow, road: str, asked: tuple[str, ...]
) -> list[Diagnosis]:
    found = []
    if row.is_emulation and row.transports == ("tcp",):
        environment = reading.environments[-1] if reading.environments else None
        others = [entry for entry in asked if entry != "tcp"]
        if environment is not None and set(asked) == {"tcp"}:
            found.append(
                Diagnosis(
                    "UCX_TLS allows TCP alone, so every byte goes through the CPUs of both engines",
                    _NAME_A_TRANSPORT,
                    environment.where,
                    redact_text(environment.text.strip()),
                )
            )
        elif environment is None:
            found.append(
                Diagnosis(
                    "UCX was told so or found nothing faster: which of the two, its environment "
                    "line would say, and it is not in this log",
                    f"set UCX_LOG_LEVEL=info to see it; {_LOOK_FOR}",
                    row.where,
                    redact_text(row.text.strip()),
                    is_possible=True,
                )
            )
        elif not asked:
            found.append(
                Diagnosis(
                    "UCX was free to choose and found nothing faster than TCP between the engines",
                    _LOOK_FOR,
                    row.where,
                    redact_text(row.text.strip()),
                )
            )
        if environment is not None and others and not reading.causes:
            found.append(
                Diagnosis(
                    f"UCX_TLS allows {', '.join(others)} too, and UCX did not use it between these "
                    "engines: two hosts or separate PID namespaces (two pods) for what joins "
                    "processes of one host, a link or GID that is down for RDMA",
                    "run kvroad doctor host=… transport=… there; let pods share host and PID "
                    "namespace",
                    environment.where,
                    redact_text(environment.text.strip()),
                    is_possible=True,
                    report="vllm-project/vllm#55906",
                )
            )
    lanes = reading.ipc_lanes
    is_gpu = any(one.table.local_memory == "cuda" for one in reading.road_tables)
    if lanes is not None and is_gpu and row.is_emulation:
        found.append(
            Diagnosis(
                "cuda_ipc is connected and not used for the cache: GPUs without NVLink, separate "
                "PID namespaces (two pods), or memory that cuda_ipc cannot share",
                "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y or push instead of pull; share the PID "
                "namespace; unset expandable_segments",
                lanes.where,
                redact_text(lanes.text.strip()),
                is_possible=True,
                report="vllm-project/vllm#52607, vllm-project/vllm#55906, ai-dynamo/nixl#1754",
            )
        )
    return found


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
