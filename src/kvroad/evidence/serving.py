"""One phase of load on serving engines: what was asked, transferred and answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvroad.evidence.requests import (
    Request,
    median,
    parse_aiperf,
    parse_own,
    parse_vllm_bench,
    rate_of,
)
from kvroad.evidence.vllm import Metrics, Transfers, parse_prometheus, transfers_between

__all__ = ["SERVED_FILES", "ServedPhase", "folder_of", "served_phase"]

# The files of a phase that say something; all else in its folder is for a reader.
SERVED_FILES = (
    *("decode.start.prom", "decode.end.prom", "prefill.start.prom", "prefill.end.prom"),
    *("load.json", "requests.jsonl", "profile_export.jsonl", "bench.json"),
)


@dataclass(frozen=True)
class ServedPhase:
    """The records of one phase.

    Parameters
    ----------
    asked
        The command of the plan: lengths, requests, concurrency, predicted pull.
    load
        What the driver noted of the tool: command line, exit status, hash of the prompts.
    transfers
        None where a snapshot of decode's metrics is missing.
    decode
        Decode's metrics at the end of the phase.
    """

    cell: str
    phase: str
    where: str
    asked: Mapping[str, Any]
    load: Mapping[str, Any] = field(default_factory=dict)
    transfers: Transfers | None = None
    decode: Metrics | None = None
    requests: tuple[Request, ...] = ()

    @property
    def good(self) -> list[Request]:
        """The requests that were answered whole."""
        return [request for request in self.requests if request.error is None]

    @property
    def n_asked(self) -> int:
        """How many requests the plan asked for."""
        return int(self.asked.get("requests", 0))

    @property
    def n_failed(self) -> int:
        """How many of those asked for were not answered."""
        return max(self.n_asked, len(self.requests)) - len(self.good)

    @property
    def prompts_sha256(self) -> str | None:
        """Hash of all prompts of the phase; None where the tool does not tell them."""
        return self.load.get("prompts_sha256")

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
        return rate_of(self.requests, self.load.get("duration_s"))


def folder_of(cell: str, phase: str) -> str:
    """Return the folder of a phase within the raw folder."""
    return f"serving/{cell}/{phase}"


def served_phase(
    cell: str, phase: str, asked: Mapping[str, Any], files: Mapping[str, str]
) -> ServedPhase:
    """Put the records of a phase together from its files, by name; missing ones stay unknown."""
    where = folder_of(cell, phase)
    snapshots = {name: parse_prometheus(files[name]) for name in SERVED_FILES[:4] if name in files}
    start, end = snapshots.get("decode.start.prom"), snapshots.get("decode.end.prom")
    far = snapshots.get("prefill.start.prom"), snapshots.get("prefill.end.prom")
    transfers = None
    if start is not None and end is not None:
        other = (far[0], far[1]) if far[0] is not None and far[1] is not None else None
        transfers = transfers_between(start, end, other)
    load = _object(files.get("load.json", ""))
    if "bench.json" in files and "duration_s" not in load:
        load = {**load, "duration_s": _object(files["bench.json"]).get("duration")}
    return ServedPhase(cell, phase, where, asked, load, transfers, end, _requests(files, where))


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
