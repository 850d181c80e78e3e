"""What vLLM says of KV transfers: Prometheus metrics, and the line it logs every few seconds.

Metrics (vLLM 0.23 and 0.31; Dynamo passes them on with more labels) are cumulative, so two
snapshots are subtracted. `kvroad.evidence.kv_transfer` reads the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvroad.evidence.kv_transfer import ANSI, NEEDLE, TransferLine, TransferSum, parse_transfer_line
from kvroad.evidence.log import Record

__all__ = [
    "KvLine",
    "Metrics",
    "Transfers",
    "parse_kv_lines",
    "parse_prometheus",
    "totals_of",
    "transfers_between",
]

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_XFER, _POST = "vllm:nixl_xfer_time_seconds", "vllm:nixl_post_time_seconds"
_BYTES, _DESCRIPTORS = "vllm:nixl_bytes_transferred", "vllm:nixl_num_descriptors"
_SOURCE = "vllm:prompt_tokens_by_source_total"


class Metrics:
    """The samples of one snapshot."""

    def __init__(self, samples: Mapping[str, list[tuple[dict[str, str], float]]]) -> None:
        self._samples = samples

    def __contains__(self, name: str) -> bool:
        """Return whether there is a sample of that name."""
        return name in self._samples

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all label sets that hold ``labels``; 0 where there is none."""
        return sum(
            value
            for have, value in self._samples.get(name, ())
            if all(have.get(key) == text for key, text in labels.items())
        )

    def label(self, name: str, label: str) -> set[str]:
        """Return the values that a label of a metric has."""
        return {have[label] for have, _ in self._samples.get(name, ()) if label in have}


def parse_prometheus(text: str) -> Metrics:
    """Read the text format of Prometheus; comments and lines that are no sample are left out."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        samples.setdefault(name, []).append((dict(_LABEL.findall(labels or "")), value))
    return Metrics(samples)


@dataclass(frozen=True)
class Transfers:
    """What decode counted between two snapshots; one transfer is one rank's pull of a request.

    ``expired`` and ``failed_notifications`` are those of both engines. ``locally_computed``
    and ``locally_cached`` are prompt tokens that decode did not pull.
    """

    count: float
    xfer_s: float
    post_s: float
    n_bytes: float
    descriptors: float
    failed: float
    failed_notifications: float
    expired: float
    locally_computed: float = 0.0
    locally_cached: float = 0.0

    @property
    def reset(self) -> bool:
        """Whether a counter fell: the engine has restarted in between."""
        return min(self.count, self.xfer_s, self.post_s, self.n_bytes, self.descriptors) < 0


def transfers_between(
    start: Metrics, end: Metrics, other: tuple[Metrics, Metrics] | None = None
) -> Transfers:
    """Subtract two snapshots of decode; ``other`` are the same two of prefill."""

    def moved(name: str, **labels: str) -> float:
        return end.total(name, **labels) - start.total(name, **labels)

    def of_both(name: str) -> float:
        far = other[1].total(name) - other[0].total(name) if other else 0.0
        return moved(name) + far

    return Transfers(
        count=moved(f"{_XFER}_count"),
        xfer_s=moved(f"{_XFER}_sum"),
        post_s=moved(f"{_POST}_sum"),
        n_bytes=moved(f"{_BYTES}_sum"),
        descriptors=moved(f"{_DESCRIPTORS}_sum"),
        failed=of_both("vllm:nixl_num_failed_transfers_total"),
        failed_notifications=of_both("vllm:nixl_num_failed_notifications_total"),
        expired=of_both("vllm:nixl_num_kv_expired_reqs_total"),
        locally_computed=moved(_SOURCE, source="local_compute"),
        locally_cached=moved(_SOURCE, source="local_cache_hit"),
    )


@dataclass(frozen=True)
class KvLine(Record):
    """One whole ``KV Transfer metrics`` line of a log."""

    transfers: TransferLine


def parse_kv_lines(lines: Iterable[str], file: str, first: int = 1) -> tuple[KvLine, ...]:
    """Read lines of a log; one that is cut is left out, and the totals then lack it.

    ``first`` is the number of the first of them.
    """
    found = []
    for number, line in enumerate(lines, start=first):
        transfers = parse_transfer_line(line) if NEEDLE in line else None
        if transfers is not None and transfers.is_whole:
            found.append(KvLine(file, number, ANSI.sub("", line).rstrip(), transfers))
    return tuple(found)


def totals_of(lines: Iterable[KvLine]) -> TransferSum:
    """Add lines up."""
    total = TransferSum()
    for line in lines:
        total.add(line.transfers)
    return total
