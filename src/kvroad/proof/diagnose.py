"""From known lines to causes and fixes; each cause names the line that it goes by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvroad.evidence.log import Complaint, ProcessLog, Record
from kvroad.evidence.nixl import PullLog
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import ProtocolRow, UcxLog
from kvroad.proof.causes import CAUSES, LOAD_DRIVERS, Cause

__all__ = [
    "Diagnosis",
    "advice",
    "diagnose_complaints",
    "diagnose_pulls",
    "diagnose_row",
    "diagnosis_of",
    "lost_devices",
]


@dataclass(frozen=True)
class Diagnosis:
    """A cause found in a log, with its fix and the line that it goes by.

    ``is_possible``: no sample of ours shows the line with this cause, so it may be another one;
    ``report`` is a public thread that tells of it, ``name`` that of the cause in its table.
    """

    cause: str
    fix: str
    where: str
    quote: str
    is_possible: bool = False
    report: str = ""
    name: str = ""

    def __str__(self) -> str:
        """``cause (file:line); fix``, marked where it is only possible."""
        mark = "possible cause: " if self.is_possible else ""
        return f"{mark}{self.cause} ({self.where}); {self.fix}"


_DEVICES = re.compile(r"network devices? (.*?) (?:is|are) not available")
_DRIVER = re.compile(r"couldn't load driver '(?P<driver>lib(?P<stem>[a-z]+\d*)[^']*)'")


def diagnose_complaints(logs: Iterable[ProcessLog]) -> list[Diagnosis]:
    """Return the known causes among the logs' complaints, each once, gravest first.

    Those that are only possible come after those that a sample shows.
    """
    complaints = [complaint for log in logs for complaint in log.complaints]
    found = lost_devices(complaints)
    for cause in CAUSES:
        for complaint in complaints:
            if match := cause.pattern.search(complaint.message):
                found.append(diagnosis_of(cause, match, complaint))
                break
    return sorted(found, key=lambda cause: cause.is_possible)


def advice(logs: Iterable[ProcessLog]) -> str:
    """Return the gravest known cause among complaints as the rest of a sentence, or nothing."""
    found = diagnose_complaints(logs)
    return f": {found[0]}" if found else ""


def lost_devices(complaints: list[Complaint]) -> list[Diagnosis]:
    """Say which asked device is unseen for want of its driver.

    libibverbs complains of every driver that it lacks, and most have no device here. Kernel
    names of devices begin with the driver's: ``rxe0`` and ``librxe-rdmav34.so``.
    """
    lists = [names for c in complaints for names in _DEVICES.findall(c.message)]
    names = {name for text in lists for name in re.findall(r"'([^']+)'", text)}
    for complaint in complaints:
        driver = _DRIVER.search(complaint.message)
        lost = sorted(name for name in names if driver and name.startswith(driver["stem"]))
        if driver and lost:
            cause = f"libibverbs has no driver {driver['driver']}, so that {lost[0]} stays unseen"
            quote = redact_text(complaint.text)
            where = complaint.where
            return [
                Diagnosis(redact_text(cause), LOAD_DRIVERS, where, quote, name="driver missing")
            ]
    return []


def diagnosis_of(cause: Cause, match: re.Match[str], record: Record) -> Diagnosis:
    """Return a cause as it was found in a line."""
    groups = {name: redact_text(text) for name, text in match.groupdict().items()}
    return Diagnosis(
        cause.cause.format(**groups),
        cause.fix.format(**groups),
        record.where,
        redact_text(record.text.strip()),
        cause.is_possible,
        cause.report,
        cause.name,
    )


def diagnose_row(log: UcxLog, row: ProtocolRow, memory: str) -> Diagnosis | None:
    """Say why GPU memory is read by emulation although cuda_ipc is there.

    Goes by a lane line with ``cuda_ipc`` beside a row that emulates: then cuda_ipc
    reaches the peer and offers no remote read.
    """
    if memory != "VRAM" or not row.is_emulation:
        return None
    for lanes in log.lanes:
        if lanes.scope != "self" and lanes.has("cuda_ipc/cuda"):
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
