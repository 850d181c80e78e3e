"""One phase of load on serving engines: what was asked, transferred and answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from kvroad.evidence.events import AgentEvent
from kvroad.evidence.requests import (
    Request,
    median,
    parse_aiperf,
    parse_own,
    parse_vllm_bench,
    rate_of,
)
from kvroad.evidence.vllm import Metrics, Transfers, parse_prometheus, transfers_between

__all__ = [
    "CACHE_CHECKS",
    "DIFFERENT",
    "EQUAL",
    "NOT_CHECKED",
    "SERVED_FILES",
    "LoadResult",
    "PlannedLoad",
    "ServedPhase",
    "cache_check_of",
    "cache_facts",
    "folder_of",
    "served_phase",
]

R = TypeVar("R", "PlannedLoad", "LoadResult")

EQUAL, DIFFERENT, NOT_CHECKED = "equal", "different", "not checked"
CACHE_CHECKS = (EQUAL, DIFFERENT, NOT_CHECKED)
"""What is known of the blocks that decode pulled for the probe, against those of prefill."""

# The files of a phase that say something; all else in its folder is for a reader.
SERVED_FILES = (
    *("decode.start.prom", "decode.end.prom", "prefill.start.prom", "prefill.end.prom"),
    *("load.json", "requests.jsonl", "profile_export.jsonl", "bench.json"),
)


@dataclass(frozen=True)
class PlannedLoad:
    """What the plan asks of a phase: requests and their lengths, and the pull it predicts."""

    requests: int = 0
    prompt_tokens: int = 1
    output_tokens: int | None = None
    descriptors: int = 0
    pull_bytes: int = 0


@dataclass(frozen=True)
class LoadResult:
    """What the driver noted of the load generator; None where it did not."""

    returncode: int | None = None
    error: str | None = None
    duration_s: float | None = None
    prompts_sha256: str | None = None


@dataclass(frozen=True)
class ServedPhase:
    """The records of one phase.

    Parameters
    ----------
    transfers
        None where a snapshot of decode's metrics is missing.
    decode
        Decode's metrics at the end of the phase.
    """

    cell: str
    phase: str
    where: str
    planned: PlannedLoad
    load: LoadResult = field(default_factory=LoadResult)
    transfers: Transfers | None = None
    decode: Metrics | None = None
    requests: tuple[Request, ...] = ()

    @property
    def good(self) -> list[Request]:
        """The requests that were answered whole."""
        return [request for request in self.requests if request.error is None]

    @property
    def n_failed(self) -> int:
        """How many of those asked for were not answered."""
        return max(self.planned.requests, len(self.requests)) - len(self.good)

    @property
    def prompts_sha256(self) -> str | None:
        """Hash of all prompts of the phase; None where the tool does not tell them."""
        return self.load.prompts_sha256

    @property
    def ttft_p50_s(self) -> float | None:
        """Median time to the first token of the good requests."""
        return median(request.ttft_s for request in self.good)

    @property
    def itl_p50_s(self) -> float | None:
        """Median over good requests of their mean time between tokens."""
        return median(request.itl_s for request in self.good)

    @property
    def requests_per_s(self) -> float | None:
        """Good requests per second."""
        return rate_of(self.requests, self.load.duration_s)


def folder_of(cell: str, phase: str) -> str:
    """Return the folder of a phase within the raw folder."""
    return f"serving/{cell}/{phase}"


def served_phase(
    cell: str, phase: str, command: Mapping[str, object], files: Mapping[str, str]
) -> ServedPhase:
    """Put the records of a phase together from its files, by name; missing ones stay unknown.

    ``command`` is the line of the plan that started it.
    """
    where = folder_of(cell, phase)
    snapshots = {name: parse_prometheus(files[name]) for name in SERVED_FILES[:4] if name in files}
    start, end = snapshots.get("decode.start.prom"), snapshots.get("decode.end.prom")
    far = snapshots.get("prefill.start.prom"), snapshots.get("prefill.end.prom")
    transfers = None
    if start is not None and end is not None:
        other = (far[0], far[1]) if far[0] is not None and far[1] is not None else None
        transfers = transfers_between(start, end, other)
    load = _known(LoadResult, _object(files.get("load.json", "")))
    if "bench.json" in files and load.duration_s is None:
        load = replace(load, duration_s=_object(files["bench.json"]).get("duration"))
    planned, requests = _known(PlannedLoad, command), _requests(files, where)
    return ServedPhase(cell, phase, where, planned, load, transfers, end, requests)


def _known(kind: type[R], values: Mapping[str, Any]) -> R:
    """Return a record of the values that it has a field for."""
    names = {item.name for item in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def cache_check_of(events: Iterable[AgentEvent]) -> str:
    """Return one of `CACHE_CHECKS`: the fact ``cache_check`` of the launch's ready events.

    Its details follow a colon; what is no known word is no check.
    """
    words = {text.partition(":")[0] for text in cache_facts(events)}
    return next((word for word in (DIFFERENT, EQUAL) if word in words), NOT_CHECKED)


def cache_facts(events: Iterable[AgentEvent]) -> list[str]:
    """Return what the ready events of a launch tell of the check, word for word."""
    ready = [event for event in events if event.get("event") == "ready"]
    return [str(event["cache_check"]) for event in ready if "cache_check" in event]


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _requests(files: Mapping[str, str], where: str) -> tuple[Request, ...]:
    if "requests.jsonl" in files:
        return parse_own(files["requests.jsonl"].splitlines(), f"{where}/requests.jsonl")
    if "profile_export.jsonl" in files:
        lines = files["profile_export.jsonl"].splitlines()
        return parse_aiperf(lines, f"{where}/profile_export.jsonl")
    if "bench.json" in files:
        try:
            return parse_vllm_bench(files["bench.json"], f"{where}/bench.json")
        except ValueError:
            return ()
    return ()
