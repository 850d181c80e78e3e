"""What vLLM says of KV transfers: Prometheus metrics, and the line it logs every few seconds.

Metrics (vLLM 0.23 and 0.31; Dynamo passes them on with more labels) are cumulative, so two
snapshots are subtracted. The log line pools all ranks since the last one; its "MB" is
2^20 bytes, and its throughput is bytes over the *sum* of transfer times: the mean rate of
one transfer, never what several moved together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = [
    "KvLine",
    "KvTotals",
    "Metrics",
    "Transfers",
    "parse_kv_lines",
    "parse_prometheus",
    "totals_of",
    "transfers_between",
]

MIB = 1 << 20
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_KV_LINE = "KV Transfer metrics: "
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
class KvLine:
    """One ``KV Transfer metrics`` line: all ranks pooled since the line before.

    Times in seconds; ``bytes_per_transfer`` is converted from MiB, ``bytes_per_s`` is the mean
    rate of one transfer. ``failed`` and ``expired`` are None in vLLM 0.23, which prints neither.
    """

    file: str
    line: int
    text: str
    count: int
    xfer_s: float
    post_s: float
    bytes_per_transfer: float
    bytes_per_s: float
    descriptors: float
    failed: int | None
    expired: int | None

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


def parse_kv_lines(lines: Iterable[str], file: str) -> tuple[KvLine, ...]:
    """Read the lines of a whole log, with or without colours and whatever their prefix."""
    found = []
    for number, line in enumerate(lines, start=1):
        if _KV_LINE not in line:
            continue
        text = _ANSI.sub("", line).rstrip()
        pairs = (pair.split("=", 1) for pair in text.partition(_KV_LINE)[2].split(", "))
        values = {pair[0].strip(): pair[1] for pair in pairs if len(pair) == 2}
        try:
            found.append(_kv_line(values, file, number, text))
        except (KeyError, ValueError):
            # A line that another process broke up: the totals then say that it is missing.
            continue
    return tuple(found)


def _kv_line(values: Mapping[str, str], file: str, number: int, text: str) -> KvLine:
    failed = values.get("Num failed transfers")
    expired = values.get("Num KV expired reqs")
    return KvLine(
        file,
        number,
        text,
        count=int(values["Num successful transfers"]),
        xfer_s=float(values["Avg xfer time (ms)"]) / 1e3,
        post_s=float(values["Avg post time (ms)"]) / 1e3,
        bytes_per_transfer=float(values["Avg MB per transfer"]) * MIB,
        bytes_per_s=float(values["Throughput (MB/s)"]) * MIB,
        descriptors=float(values["Avg number of descriptors"]),
        failed=None if failed is None else int(failed),
        expired=None if expired is None else int(expired),
    )


@dataclass(frozen=True)
class KvTotals:
    """The sum over log lines, and by how much rounding in them may be off."""

    count: int
    xfer_s: float
    post_s: float
    n_bytes: float
    descriptors: float
    xfer_slack_s: float
    bytes_slack: float


def totals_of(lines: Iterable[KvLine]) -> KvTotals:
    """Add lines up; their means are printed to 1 µs, 0.001 MiB and 0.1 descriptors."""
    known = list(lines)
    count = sum(line.count for line in known)
    return KvTotals(
        count=count,
        xfer_s=sum(line.count * line.xfer_s for line in known),
        post_s=sum(line.count * line.post_s for line in known),
        n_bytes=sum(line.count * line.bytes_per_transfer for line in known),
        descriptors=sum(line.count * line.descriptors for line in known),
        xfer_slack_s=count * 0.5e-6,
        bytes_slack=count * 0.0005 * MIB,
    )
