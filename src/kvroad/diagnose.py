"""From known lines to causes and fixes; each cause names the line that it goes by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvroad.evidence.nixl import PullLog
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import Complaint, ProtocolRow, UcxLog

__all__ = ["CAUSES", "Cause", "Diagnosis", "diagnose_complaints", "diagnose_pulls", "diagnose_row"]


@dataclass(frozen=True)
class Cause:
    """A known complaint: how its line reads, what is behind it, what to do.

    ``cause`` and ``fix`` may name the groups of the pattern in braces.
    """

    pattern: re.Pattern[str]
    cause: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """A cause found in a log, with its fix and the line that it goes by."""

    cause: str
    fix: str
    where: str
    quote: str

    def __str__(self) -> str:
        """``cause (file:line); fix``."""
        return f"{self.cause} ({self.where}); {self.fix}"


_LOAD_DRIVERS = "let the process load the system's libibverbs and its providers"
_DEVICES = re.compile(r"network devices? (.*?) (?:is|are) not available")
_DRIVER = re.compile(r"couldn't load driver '(?P<driver>lib(?P<stem>[a-z]+\d*)[^']*)'")

# The first that fits is the one that is told: what stopped everything comes first.
CAUSES = (
    Cause(
        re.compile(r"no active messages transport to .*no peer failure handler"),
        "no transport in UCX_TLS can carry NIXL's control messages",
        "add a control lane such as tcp to UCX_TLS",
    ),
    Cause(
        re.compile(
            r"transports? (?P<asked>(?:'[^']+',?)+) (?:is|are) not available, "
            r"please use one or more of: (?P<offered>.*)"
        ),
        "UCX has no {asked} on this host, only {offered}",
        "check device, driver and spelling, and that UCX is built with them (ucx_info -d)",
    ),
    Cause(
        re.compile(r"no usable transports/devices \(asked (?P<asked>.*?)(?: on .*)?\)"),
        "none of the asked transports {asked} is usable on this host",
        "compare UCX_TLS and UCX_NET_DEVICES with what ucx_info -d lists",
    ),
    Cause(
        re.compile(r"VRAM memory is detected as host by UCX"),
        "UCX takes GPU memory for host memory",
        "add cuda_copy to UCX_TLS and see that UCX's CUDA modules load",
    ),
    Cause(
        re.compile(r"couldn't load driver '(?P<driver>[^']+)'"),
        "libibverbs has no driver {driver}, so that its devices stay unseen",
        _LOAD_DRIVERS,
    ),
    Cause(
        re.compile(r"Please set max locked memory \(ulimit -l\)"),
        "the limit of locked memory is too small for RDMA",
        "set ulimit -l unlimited for the processes",
    ),
    Cause(
        re.compile(r"Transport retry count exceeded on (?P<port>\S+)"),
        "packets on {port} were not answered",
        "check link, GID index (UCX_IB_GID_INDEX), traffic class and flow control",
    ),
    Cause(
        re.compile(r"cannot return values when telemetry is not enabled|NIXL_ERR_NO_TELEMETRY"),
        "NIXL's telemetry is off",
        "unset NIXL_TELEMETRY_ENABLE: a false value there vetoes the agent's own request",
    ),
    Cause(
        re.compile(r"unused environment variables?: (?P<names>.*)"),
        "this UCX does not know {names}",
        "check the spelling and the version of UCX",
    ),
)


def diagnose_complaints(logs: Iterable[UcxLog]) -> list[Diagnosis]:
    """Return the known causes among the logs' complaints, each once, gravest first."""
    complaints = [complaint for log in logs for complaint in log.complaints]
    found = _lost_devices(complaints)
    for cause in CAUSES:
        for complaint in complaints:
            if match := cause.pattern.search(complaint.message):
                found.append(_diagnosis(cause, match, complaint))
                break
    return found


def _lost_devices(complaints: list[Complaint]) -> list[Diagnosis]:
    """Say which asked device is unseen for want of its driver.

    libibverbs complains of every driver that it lacks, and most have no device here. Kernel
    names of devices begin with the driver's: ``rxe0`` and ``librxe-rdmav34.so``.
    """
    asked = [name for c in complaints for name in _DEVICES.findall(c.message)]
    names = {name for text in asked for name in re.findall(r"'([^']+)'", text)}
    for complaint in complaints:
        driver = _DRIVER.search(complaint.message)
        lost = sorted(name for name in names if driver and name.startswith(driver["stem"]))
        if driver and lost:
            cause = f"libibverbs has no driver {driver['driver']}, so that {lost[0]} stays unseen"
            quote = redact_text(complaint.text)
            return [Diagnosis(redact_text(cause), _LOAD_DRIVERS, complaint.where, quote)]
    return []


def _diagnosis(cause: Cause, match: re.Match[str], complaint: Complaint) -> Diagnosis:
    groups = {name: redact_text(text) for name, text in match.groupdict().items()}
    quote = redact_text(complaint.text)
    return Diagnosis(
        cause.cause.format(**groups), cause.fix.format(**groups), complaint.where, quote
    )


def diagnose_row(log: UcxLog, row: ProtocolRow, memory: str) -> Diagnosis | None:
    """Say why GPU memory is read by emulation although cuda_ipc is there.

    Goes by a lane line with ``cuda_ipc`` beside a row that emulates: then cuda_ipc
    reaches the peer and offers no remote read.
    """
    if memory != "VRAM" or not row.is_emulation:
        return None
    for lanes in log.lanes:
        if lanes.scope != "self" and any(
            "cuda_ipc/cuda" in names for names in lanes.lanes.values()
        ):
            return Diagnosis(
                "cuda_ipc is connected but not used for remote reads",
                "GPUs without NVLink: UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y or push instead of pull; "
                "containers: share the PID namespace",
                lanes.where,
                redact_text(lanes.text),
            )
    return None


def diagnose_pulls(logs: Iterable[PullLog]) -> Diagnosis | None:
    """Say why fewer descriptors moved than were given: NIXL merges neighbours."""
    for log in logs:
        for pull in log.pulls:
            given, moved = pull.descriptors_given, pull.descriptors_moved
            if pull.is_done and given is not None and moved is not None and moved < given:
                return Diagnosis(
                    f"NIXL merged {given} descriptors into {moved}",
                    "keep a gap between neighbouring descriptors of one list",
                    pull.where,
                    f"descriptors_given {given}, descriptors_moved {moved}",
                )
    return None
