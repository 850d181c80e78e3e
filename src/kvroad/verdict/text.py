"""Numbers to words: how ratios, times, intervals and verdicts are put in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvroad.tables import metric

__all__ = [
    "NOT_BOUNDED",
    "Entry",
    "because",
    "contrast_entry",
    "interval",
    "limits",
    "number",
    "percent",
    "ratio_text",
    "records",
    "refusal_text",
    "sentence",
    "tokens_text",
    "value_text",
]

NOT_BOUNDED = "not bounded by these launches"
# Limits further apart say nothing of a value: two launches of a noisy arm give them.
_UNBOUNDED = 1e6
_NO_NUMBER = ("refused", "not measured", "withheld")


@dataclass(frozen=True)
class Entry:
    """One entry of a verdict table.

    Parameters
    ----------
    value
        Ratio, difference, or a baseline's ``1.00x``; empty where there is no number.
    limits
        The interval, or a baseline's value.
    word
        Verdict word without advice; empty for a baseline and for a lone value.
    advice
        What would settle an open verdict.
    """

    value: str
    limits: str = ""
    word: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """Return the entry in one line."""
        head = f"{self.value} ({self.limits})" if self.limits else self.value
        word = f"{self.word}: {self.advice}" if self.advice else self.word
        return f"{head} {word}".strip()


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def number(value: float) -> str:
    """Return three significant digits without an exponent; 0 stays 0."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 9)}f}"


def ratio_text(ratio: float) -> str:
    """Return a ratio as in ``1.02x``, ``17.3x``, ``0.0831x``."""
    return f"{number(ratio)}x"


def percent(share: float) -> str:
    """Return a share as in ``95 %``."""
    return f"{100 * share:g} %"


def tokens_text(tokens: int) -> str:
    """Return a prompt length as in ``4,096``."""
    return f"{tokens:,}"


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, or ``no value``."""
    return "no value" if math.isnan(value) else f"{number(value)} {unit}"


def interval(row: Mapping[str, Any]) -> str:
    """Return a contrast's interval on its tested scale, ``low to high``, or ``no interval``."""
    if row["tested"] == "ratio":
        return _ratio_limits(row["ratio_low"], row["ratio_high"])
    return limits(row["difference_low"], row["difference_high"], row["unit"])


def limits(low: float, high: float, unit: str = "") -> str:
    """Return ``low to high unit``, ``no interval``, or that the launches set no limits."""
    if math.isnan(low):
        return "no interval"
    if low > 0 and high > _UNBOUNDED * low:
        return NOT_BOUNDED
    return f"{number(low)} to {number(high)} {unit}".strip()


def _ratio_limits(low: float, high: float) -> str:
    """Return the limits of a ratio; beyond a factor of 1,000 only that much is said."""
    if math.isnan(low):
        return "no interval"
    if low < 0.001 and high > 1000:
        return NOT_BOUNDED
    lowest = "below 0.001" if low < 0.001 else number(low)
    highest = "above 1,000" if high > 1000 else number(high)
    # Both limits may lie beyond the same bound, and then neither says enough.
    if high < 0.001 or low > 1000:
        return f"{low:.2g} to {high:.2g}"
    return f"{lowest} to {highest}"


def contrast_entry(row: Mapping[str, Any]) -> Entry:
    """Return a contrast's table entry: ratio or difference, interval, and verdict word."""
    word, advice = str(row["verdict"]), ""
    if word in _NO_NUMBER:
        return Entry("", word=word)
    if word == "inconclusive" and not pd.isna(row["launches_needed"]):
        advice = f"about {int(row['launches_needed']):,} launches would settle it"
    if row["tested"] == "ratio":
        return Entry(ratio_text(row["ratio"]), interval(row), word, advice)
    sign = "+" if row["difference"] > 0 else ""
    value = f"{sign}{value_text(row['difference'], row['unit'])}"
    return Entry(value, interval(row), word, advice)


def refusal_text(row: Mapping[str, Any]) -> str:
    """Return why cells of an arm carry no number, with the road expected and the road seen."""
    tokens = ", ".join(tokens_text(t) for t in row["prompt_tokens"])
    cells = "1 cell" if row["n_cells"] == 1 else f"{row['n_cells']} cells"
    roads = ""
    if row["road_expected"] or row["road_seen"]:
        seen = row["road_seen"] or "none"
        roads = f" Road expected: {row['road_expected'] or 'none'}; seen: {seen}."
    where = f" ({row['where']})" if row["where"] else ""
    reason = str(row["reason"]).rstrip(".")
    return f"{row['arm']} {row['outcome']}, {cells} at {tokens} tokens: {reason}{where}.{roads}"


def sentence(row: Mapping[str, Any], cells: pd.DataFrame, alpha: float) -> str:
    """Return one verdict row in plain words with its numbers and interval."""
    what = metric(row["metric"])
    start = f"At {tokens_text(row['prompt_tokens'])} tokens, {what.label}"
    arm, baseline, word = row["arm"], row["baseline"], row["verdict"]
    if row["tested"] == "none":
        return f"{start} over {arm} against {baseline}: {word}. {_no_data(row, cells)}"
    values = (
        f"{value_text(row['arm_value'], row['unit'])} against "
        f"{value_text(row['baseline_value'], row['unit'])}"
    )
    basis = f"{percent(1 - alpha)} interval {interval(row)}; {values}; {_launches(row)}"
    if row["tested"] == "ratio":
        text = f"{start} over {arm} is {ratio_text(row['ratio'])} that over {baseline} ({basis})"
    else:
        more = "more" if row["difference"] >= 0 else "less"
        size = value_text(abs(row["difference"]), row["unit"])
        text = f"{start} over {arm} is {size} {more} than over {baseline} ({basis})"
        if word.startswith("same"):
            whole = "time to first token" if what.is_difference else "pull"
            word += f" of the {whole} over {baseline}"
    if not pd.isna(row["launches_needed"]):
        word += f", about {int(row['launches_needed'])} launches would settle it"
    note = f" Note: {row['note']}." if row["note"] else ""
    return f"{text}: {word}.{note}"


def _launches(row: Mapping[str, Any]) -> str:
    if row["is_interleaved"]:
        n = row["n_pairs"]
        return f"{n} paired launch{'es' if n != 1 else ''}"
    return f"{row['n_arm']} and {row['n_baseline']} launches, not interleaved"


def _no_data(row: Mapping[str, Any], cells: pd.DataFrame) -> str:
    """Say for each arm without data what became of its cells at this prompt length."""
    if row["withheld"]:
        return f"The arms differ in {row['withheld']}, which no variant declares."
    here = cells[cells["prompt_tokens"] == row["prompt_tokens"]]
    texts = [
        because(arm, cells, row["prompt_tokens"])
        for arm in (row["arm"], row["baseline"])
        if not (here.loc[here["arm"] == arm, "outcome"] == "proven").any()
    ]
    return " ".join(texts) or "No launch carries this metric."


def because(arm: str, cells: pd.DataFrame, prompt_tokens: int | None = None) -> str:
    """Return why an arm has no number, its cells at ``prompt_tokens`` before its others."""
    own = cells[(cells["arm"] == arm) & cells["outcome"].isin(["refused", "failed"])]
    if own.empty:
        return f"{arm} has no cell measured."
    # An arm that can only repeat its refusal is ended, so its reason may stand elsewhere.
    first = own.sort_values("prompt_tokens", key=lambda t: t != prompt_tokens, kind="stable").iloc[
        0
    ]
    return f"{arm} was {first['outcome']}: {str(first['reason']).rstrip('.')}."
