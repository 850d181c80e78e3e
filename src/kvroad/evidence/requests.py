"""Requests of a load generator as records: aiperf's, those of vLLM's benchmark, and our own.

Times are seconds. aiperf 0.13 writes one JSON object per request (``profile_export.jsonl``);
``vllm bench serve --save-detailed`` one object with a list per quantity; our own warm-up
requests are rows of ``requests.jsonl``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Request", "median", "parse_aiperf", "parse_own", "parse_vllm_bench", "rate_of"]

_NS = 1e9
_MS = 1e3


@dataclass(frozen=True)
class Request:
    """One request; ``error`` is None for a good one.

    Parameters
    ----------
    started_s, ended_s
        On one clock for all requests of a file; None where the tool tells neither.
    ttft_s, itl_s
        Time to the first token, and mean time between tokens after it.
    """

    where: str
    started_s: float | None
    ended_s: float | None
    ttft_s: float | None
    itl_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    error: str | None = None


def parse_aiperf(lines: Iterable[str], file: str) -> tuple[Request, ...]:
    """Read ``profile_export.jsonl``: the measured requests, failed ones included.

    Requests of aiperf's own warm-up are left out. A line that cannot be read is a failed
    request: what is not known did not work.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
            meta = row["metadata"]
            if meta.get("benchmark_phase", "profiling") != "profiling":
                continue
            found.append(_aiperf_request(row, meta, where))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found.append(_unreadable(where, error))
    return tuple(found)


def _aiperf_request(row: Mapping[str, Any], meta: Mapping[str, Any], where: str) -> Request:
    """Take a request as failed where aiperf gives an error or no first token."""
    metrics = row.get("metrics") or {}
    error = row.get("error")
    text = None if not error else str(error.get("message") or error.get("type") or error)
    if text is None and meta.get("was_cancelled"):
        text = "cancelled"
    ttft = _value(metrics, "time_to_first_token")
    itl = _value(metrics, "inter_token_latency")
    if text is None and ttft is None:
        text = "no first token"
    output = _value(metrics, "usage_completion_tokens")
    return Request(
        where,
        started_s=meta["request_start_ns"] / _NS,
        ended_s=meta["request_end_ns"] / _NS,
        ttft_s=None if ttft is None else ttft / _MS,
        itl_s=None if itl is None else itl / _MS,
        input_tokens=_whole(_value(metrics, "usage_prompt_tokens", "input_sequence_length")),
        output_tokens=_whole(
            output if output is not None else _value(metrics, "output_sequence_length")
        ),
        error=text,
    )


def _value(metrics: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        held = metrics.get(name)
        value = held.get("value") if isinstance(held, Mapping) else held
        if isinstance(value, int | float):
            return float(value)
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _unreadable(where: str, error: Exception) -> Request:
    text = f"not a request: {error}"
    return Request(where, None, None, None, None, None, None, text)


def parse_vllm_bench(text: str, file: str) -> tuple[Request, ...]:
    """Read the detailed result of ``vllm bench serve``; it tells no start times.

    Raises
    ------
    ValueError
        When the text is no such result.
    """
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError("no JSON object")  # noqa: TRY004 (a file, not an argument, is wrong)
    lists = {name: data.get(name) or [] for name in ("ttfts", "itls", "output_lens", "input_lens")}
    errors: Sequence[Any] = data.get("errors") or []
    n_asked = int(data.get("num_prompts") or len(lists["ttfts"]))
    found = []
    for number in range(n_asked):
        parts = {name: _at(values, number) for name, values in lists.items()}
        gaps = parts["itls"] or []
        error = _at(errors, number) or None
        if error is None and not parts["ttfts"]:
            error = "no first token"
        found.append(
            Request(
                f"{file} request {number}",
                None,
                None,
                parts["ttfts"],
                sum(gaps) / len(gaps) if gaps else None,
                parts["input_lens"],
                parts["output_lens"],
                None if error is None else str(error),
            )
        )
    return tuple(found)


def _at(values: Sequence[Any], number: int) -> Any:
    return values[number] if number < len(values) else None


def parse_own(lines: Iterable[str], file: str) -> tuple[Request, ...]:
    """Read the rows of our own requests."""
    found = []
    for number, line in enumerate(lines, start=1):
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
            started, first, ended = row["started"], row["first_token"], row["ended"]
            output = row["output_tokens"]
        except (ValueError, KeyError, TypeError) as error:
            found.append(_unreadable(where, error))
            continue
        is_whole = None not in (first, ended, output) and output > 1
        found.append(
            Request(
                where,
                started,
                ended,
                None if first is None else first - started,
                (ended - first) / (output - 1) if is_whole else None,
                row.get("input_tokens"),
                output,
                row["error"] if row.get("error") else None,
            )
        )
    return tuple(found)


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None where there is none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def rate_of(requests: Sequence[Request], duration_s: float | None = None) -> float | None:
    """Return good requests per second, from the first start to the last end of all.

    ``duration_s`` stands in where the tool tells no times of its requests.
    """
    starts = [r.started_s for r in requests if r.started_s is not None]
    ends = [r.ended_s for r in requests if r.ended_s is not None]
    if starts and ends:
        duration_s = max(ends) - min(starts)
    n_good = sum(r.error is None for r in requests)
    return n_good / duration_s if duration_s else None
