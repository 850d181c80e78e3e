"""Numbers to words: how ratios, times, intervals and verdicts are put in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import pandas as pd

from kvroad.analysis.stats import ContrastRow
from kvroad.analysis.tables import metric
from kvroad.analysis.words import (
    NO_NUMBER,
    interval,
    percent,
    ratio_text,
    tokens_text,
    value_text,
)

__all__ = [
    "Entry",
    "RefusalRow",
    "VerdictRow",
    "because",
    "contrast_entry",
    "refusal_text",
    "sentence",
]


class VerdictRow(ContrastRow):
    """One row of the verdict, see `kvroad.analysis.verdict.verdict_frame`."""

    verdict: str
    launches_needed: int | None
    sentence: str


class RefusalRow(TypedDict):
    """Cells of an arm that were refused or failed for one reason."""

    arm: str
    outcome: str
    reason: str
    road_expected: str
    road_seen: str
    where: str
    quote: str
    prompt_tokens: list[int]
    n_cells: int


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


def contrast_entry(row: VerdictRow) -> Entry:
    """Return a contrast's table entry: ratio or difference, interval, and verdict word."""
    word, advice = str(row["verdict"]), ""
    if word in NO_NUMBER:
        return Entry("", word=word)
    if word == "inconclusive" and not pd.isna(row["launches_needed"]):
        advice = f"about {int(row['launches_needed']):,} launches would settle it"
    if row["tested"] == "ratio":
        return Entry(ratio_text(row["ratio"]), interval(row), word, advice)
    sign = "+" if row["difference"] > 0 else ""
    value = f"{sign}{value_text(row['difference'], row['unit'])}"
    return Entry(value, interval(row), word, advice)


def refusal_text(row: RefusalRow) -> str:
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


def sentence(row: VerdictRow, cells: pd.DataFrame, alpha: float) -> str:
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


def _launches(row: VerdictRow) -> str:
    if row["is_interleaved"]:
        n = row["n_pairs"]
        return f"{n} paired launch{'es' if n != 1 else ''}"
    return f"{row['n_arm']} and {row['n_baseline']} launches, not interleaved"


def _no_data(row: VerdictRow, cells: pd.DataFrame) -> str:
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
    unproven = cells[(cells["arm"] == arm) & cells["outcome"].isin(["refused", "failed"])]
    if unproven.empty:
        return f"{arm} has no cell measured."
    # An arm that can only repeat its refusal is ended, so its reason may stand elsewhere.
    first = unproven.sort_values(
        "prompt_tokens", key=lambda t: t != prompt_tokens, kind="stable"
    ).iloc[0]
    return f"{arm} was {first['outcome']}: {str(first['reason']).rstrip('.')}."
