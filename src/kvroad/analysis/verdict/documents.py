"""The verdict as a table for people, as Markdown, and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvroad.analysis.stats import launch_summary
from kvroad.analysis.tables import DesignFile, Metric, metrics_of
from kvroad.analysis.verdict.notes import flag_notes, launch_value, order_note, warmup_note
from kvroad.analysis.verdict.sentences import (
    Entry,
    RefusalRow,
    VerdictRow,
    because,
    contrast_entry,
    refusal_text,
)
from kvroad.analysis.verdict.serving import (
    ExtraRow,
    alone_arms,
    alone_of,
    cache_note,
    extra_answer,
    extra_ttft,
    served_notes,
)
from kvroad.analysis.verdict.words import refusals
from kvroad.analysis.words import (
    interval,
    limits,
    number,
    percent,
    records,
    rows_of,
    tokens_text,
    value_text,
)

__all__ = ["SCHEMA", "Block", "Line", "answers", "blocks", "markdown", "verdict_json"]

SCHEMA = "kvroad.verdict/1"


@dataclass(frozen=True)
class Line:
    """One line of a verdict table: its label and an entry per prompt length."""

    label: str
    entries: tuple[Entry, ...]
    is_quoted: bool = False
    is_baseline: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Return each entry in one line."""
        return tuple(entry.text for entry in self.entries)


@dataclass(frozen=True)
class Block:
    """The verdict table of one metric, the baseline's line first."""

    metric: Metric
    prompt_tokens: tuple[int, ...]
    lines: tuple[Line, ...]


def blocks(verdict: pd.DataFrame, cells: pd.DataFrame, design: DesignFile) -> list[Block]:
    """Return a table per metric: baselines at 1.00x, ratios or differences against them."""
    return [
        _block(verdict[verdict["metric"] == m.name], cells, m, design) for m in metrics_of(cells)
    ]


def _block(rows: pd.DataFrame, cells: pd.DataFrame, metric: Metric, design: DesignFile) -> Block:
    if metric.is_difference:
        return Block(metric, tuple(design.prompt_tokens), _difference_lines(rows, cells, design))
    lines = [] if design.contrasts else _lone_lines(cells, metric, design)
    for baseline in dict.fromkeys(base for _, base in design.contrasts):
        contrasts = rows[rows["baseline"] == baseline]
        if contrasts.empty and len(rows):
            continue
        lines.append(_baseline_line(contrasts, baseline, metric, design.prompt_tokens))
        is_main = baseline == design.baseline
        for arm, group in contrasts.groupby("arm", sort=False):
            label = str(arm) if is_main else f"{arm} (against {baseline})"
            entries = {r["prompt_tokens"]: contrast_entry(r) for r in rows_of(group, VerdictRow)}
            shown = (entries.get(t, Entry("not planned")) for t in design.prompt_tokens)
            lines.append(Line(label, tuple(shown)))
    return Block(metric, tuple(design.prompt_tokens), (*lines, *_quoted_lines(metric, design)))


def _difference_lines(
    rows: pd.DataFrame, cells: pd.DataFrame, design: DesignFile
) -> tuple[Line, ...]:
    """Return a line per arm with its own value, then the differences between arms.

    The value is that of the arm's contrast with the engine that serves alone, where the
    study has it: there it has a word.
    """
    extras = extra_ttft(launch_summary(cells, design.alpha), design)
    alone, judged = alone_arms(design), _by_place(rows)
    lines = []
    for arm in (name for name in design.shown_arms if name not in alone):
        against = alone_of(arm, design)
        entries = {row["prompt_tokens"]: _extra_entry(row) for row in extras if row["arm"] == arm}
        for tokens in design.prompt_tokens:
            row = judged.get((arm, against, tokens))
            if row is not None:
                entries[tokens] = contrast_entry(row)
        lines.append(_prompt_line(f"{arm} (over {against or 'one engine alone'})", entries, design))
    for arm, base in design.contrasts:
        if not {arm, base} & set(alone):
            found = {t: judged.get((arm, base, t)) for t in design.prompt_tokens}
            entries = {t: contrast_entry(row) for t, row in found.items() if row is not None}
            lines.append(_prompt_line(f"{arm} (less {base})", entries, design))
    return tuple(lines)


def _by_place(rows: pd.DataFrame) -> dict[tuple[str, str | None, int], VerdictRow]:
    return {(r["arm"], r["baseline"], r["prompt_tokens"]): r for r in rows_of(rows, VerdictRow)}


def _prompt_line(label: str, entries: dict[int, Entry], design: DesignFile) -> Line:
    return Line(label, tuple(entries.get(t, Entry("no value")) for t in design.prompt_tokens))


def _extra_entry(row: ExtraRow) -> Entry:
    sign = "+" if row["value_ms"] > 0 else ""
    text = f"{sign}{value_text(row['value_ms'], 'ms')}"
    return Entry(text, limits(row["low_ms"], row["high_ms"], "ms"))


def _baseline_line(
    rows: pd.DataFrame, baseline: str, metric: Metric, prompt_tokens: Sequence[int]
) -> Line:
    entries = []
    for tokens in prompt_tokens:
        values = rows.loc[rows["prompt_tokens"] == tokens, "baseline_value"].dropna()
        if values.empty:
            entries.append(Entry("no value"))
        else:
            text = value_text(float(values.iloc[0]), metric.unit)
            entries.append(Entry(text) if metric.is_part else Entry("1.00x", text))
    return Line(f"{baseline} (baseline)", tuple(entries), is_baseline=True)


def _lone_lines(cells: pd.DataFrame, metric: Metric, design: DesignFile) -> list[Line]:
    """Return the values of arms that have nothing to be compared with."""
    return [
        Line(arm, tuple(entries.get(t, Entry("no value")) for t in design.prompt_tokens))
        for arm in design.arms
        for entries in [_lone_values(cells, arm, metric.name, design.alpha)]
    ]


def _lone_values(cells: pd.DataFrame, arm: str, metric: str, alpha: float) -> dict[int, Entry]:
    summary = launch_summary(cells[cells["arm"] == arm], alpha)
    chosen = summary[(summary["metric"] == metric) & (summary["n_launches"] > 0)]
    return {
        int(row["prompt_tokens"]): Entry(
            value_text(row["value"], row["unit"]), limits(row["low"], row["high"], row["unit"])
        )
        for row in records(chosen)
    }


def _quoted_lines(metric: Metric, design: DesignFile) -> list[Line]:
    if design.quoted is None or metric.name not in design.quoted.ratios:
        return []
    ratios = design.quoted.ratios[metric.name]
    entries = tuple(
        Entry(f"{ratios[t]:g}x", word="quoted") if t in ratios else Entry("not published")
        for t in design.prompt_tokens
    )
    label = f"{design.quoted.arm} against {design.quoted.baseline}, quoted"
    return [Line(label, entries, is_quoted=True)]


def answers(verdict: pd.DataFrame, cells: pd.DataFrame, design: DesignFile) -> list[str]:
    """Return a sentence per contrast on pull time, and one per arm on what a pull adds to TTFT."""
    pulls, alone = verdict[verdict["metric"] == "pull_ms"], alone_arms(design)
    arms = [arm for arm in design.shown_arms if arm not in alone]
    if design.contrasts:
        sentences = [
            _answer(rows, cells, design.alpha)
            for arm, base in design.contrasts
            if not {arm, base} & set(alone)
            for rows in [pulls[(pulls["arm"] == arm) & (pulls["baseline"] == base)]]
        ]
    else:
        sentences = [_lone_answer(cells, arm, design) for arm in arms]
    extra = extra_ttft(launch_summary(cells, design.alpha), design)
    sentences += [extra_answer(arm, extra, cells, design) for arm in arms if alone_of(arm, design)]
    return sentences or ["No number: nothing is transferred by any arm."]


def _lone_answer(cells: pd.DataFrame, arm: str, design: DesignFile) -> str:
    values = _lone_values(cells, arm, "pull_ms", design.alpha)
    if not values:
        return f"No number for {arm}: {because(arm, cells)}"
    listed = ", ".join(
        f"{entry.text} at {tokens_text(t)} tokens" for t, entry in sorted(values.items())
    )
    level = percent(1 - design.alpha)
    return f"A KV pull over {arm} takes {listed} ({level} intervals); no arm to compare it with."


def _answer(rows: pd.DataFrame, cells: pd.DataFrame, alpha: float) -> str:
    arm, baseline = rows.iloc[0]["arm"], rows.iloc[0]["baseline"]
    known = rows_of(rows[rows["tested"] == "ratio"], VerdictRow)
    if not known:
        first = str(rows.iloc[0]["sentence"]).partition(". ")[2]
        return f"No number for {arm} against {baseline}: {first}"
    parts = []
    for position, row in enumerate(known):
        name = f"{percent(1 - alpha)} interval " if position == 0 else ""
        tokens = f"{tokens_text(row['prompt_tokens'])}{' tokens' if position == 0 else ''}"
        times = f" times as long as over {baseline}" if position == 0 else ""
        parts.append(f"{number(row['ratio'])}{times} at {tokens} ({name}{interval(row)})")
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"A KV pull over {arm} takes {listed}: {_words(rows)}."


def _words(rows: pd.DataFrame) -> str:
    """Return the verdict words with the prompt lengths they hold at."""
    by_word: dict[str, list[str]] = {}
    for word, tokens in zip(rows["verdict"], rows["prompt_tokens"], strict=True):
        by_word.setdefault(str(word), []).append(tokens_text(int(tokens)))
    if len(by_word) == 1:
        word = next(iter(by_word))
        return f"{word} at every prompt length" if len(rows) > 1 else word
    return ", ".join(f"{word} at {' and '.join(tokens)}" for word, tokens in by_word.items())


def markdown(verdict: pd.DataFrame, cells: pd.DataFrame, design: DesignFile) -> str:
    """Return ``verdict.md``: the answer, a table per metric, refusals, how to read it."""
    lines = [f"# {design.study}: which road, at what cost", ""]
    lines += [text for answer in answers(verdict, cells, design) for text in (answer, "")]
    lines += _counts_lines(cells, design)
    tables = blocks(verdict, cells, design)
    for block in (b for b in tables if b.metric.is_main):
        lines += _table_lines(block)
    # Folded in a pull request, so that the answer stays on one screen.
    lines += ["<details><summary>Further metrics: in flight, goodput</summary>", ""]
    for block in (b for b in tables if not b.metric.is_main):
        lines += _table_lines(block)
    lines += ["</details>", "", "## Order and flags", "", f"- {order_note(cells, design)}"]
    lines += [*(f"- {note}" for note in [*flag_notes(verdict), *served_notes(cells)]), ""]
    refused = rows_of(refusals(cells), RefusalRow)
    if refused:
        lines += ["## Without a number", ""]
        lines += [f"- {refusal_text(row)}" for row in refused]
        lines.append("")
    return "\n".join([*lines, *_reading_lines(cells, design)])


def _counts_lines(cells: pd.DataFrame, design: DesignFile) -> list[str]:
    proven = int((cells["outcome"] == "proven").sum())
    dropped = int(cells.loc[cells["outcome"] == "proven", "n_dropped"].sum())
    line = f"{proven} of {len(cells)} cells proven; {dropped} pulls of proven cells dropped."
    overrides = [f"Overrides: `{' '.join(design.overrides)}`.", ""] if design.overrides else []
    return [line, "", *overrides]


def _table_lines(block: Block) -> list[str]:
    tokens = [f"{tokens_text(t)} tokens" for t in block.prompt_tokens]
    title = block.metric.label[0].upper() + block.metric.label[1:]
    better = "more is faster" if block.metric.is_higher_better else "less is faster"
    rows = [[line.label, *line.texts] for line in block.lines]
    table = [["arm", *tokens], ["---"] * (len(tokens) + 1), *rows]
    body = ["| " + " | ".join(_escape(text) for text in row) + " |" for row in table]
    return [f"## {title} ({better})", "", *body, ""]


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _reading_lines(cells: pd.DataFrame, design: DesignFile) -> list[str]:
    lines = [
        "## How to read it",
        "",
        f"Ratios are arm over baseline with {percent(1 - design.alpha)} intervals across launches,"
        f" each launch {launch_value(cells)}; after-post times below 5 % of the pull are"
        " compared as differences.",
        "",
    ]
    lines += [f"- {m.label} ({m.unit}): {m.formula}." for m in metrics_of(cells) if m.is_main]
    for note in filter(None, (warmup_note(cells), cache_note(cells))):
        lines += ["", note]
    if design.quoted is not None:
        lines += ["", f"Quoted: {design.quoted.source}. Quoted numbers were not measured here."]
    return [*lines, ""]


def verdict_json(verdict: pd.DataFrame, cells: pd.DataFrame, design: DesignFile) -> dict[str, Any]:
    """Return the object of ``verdict.json``.

    Fields: ``schema`` (``kvroad.verdict/1``), ``study``, ``study_name``, ``baseline``, ``alpha``,
    ``overrides``, ``answers`` (a sentence per contrast), ``cells`` (count per outcome),
    ``rows`` (the verdict table; absent numbers are null), ``extra_ttft`` (see `extra_ttft`),
    ``cache_check`` (a note, empty for a replay), ``flags`` (a note each), ``order``
    (a note), ``warmup`` (the declared rule and its count), ``refused`` (see `refusals`),
    ``quoted`` (null, or source, arm, baseline and ratios by metric and prompt tokens).
    docs/verdict.schema.json says all of it; a field that goes or changes its meaning raises
    the number behind ``kvroad.verdict/``, a new one does not.
    """
    quoted = design.quoted
    return {
        "schema": SCHEMA,
        "study": design.study,
        "study_name": design.study_name,
        "baseline": design.baseline,
        "alpha": design.alpha,
        "overrides": list(design.overrides),
        "answers": answers(verdict, cells, design),
        "cells": {str(k): int(n) for k, n in cells["outcome"].value_counts().sort_index().items()},
        "rows": [_plain(row) for row in records(verdict)],
        "extra_ttft": [
            _plain(row) for row in extra_ttft(launch_summary(cells, design.alpha), design)
        ],
        "cache_check": cache_note(cells),
        "flags": [*flag_notes(verdict), *served_notes(cells)],
        "order": order_note(cells, design),
        "warmup": warmup_note(cells),
        "refused": [_plain(row) for row in records(refusals(cells))],
        "quoted": None
        if quoted is None
        else {
            "source": quoted.source,
            "arm": quoted.arm,
            "baseline": quoted.baseline,
            "ratios": {m: {str(p): r for p, r in by.items()} for m, by in quoted.ratios.items()},
        },
    }


def _plain(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row that JSON can hold: no NaN, no infinity, no NumPy scalar."""
    plain: dict[str, object] = {}
    value: Any
    for name, value in row.items():
        if isinstance(value, list):
            plain[name] = [int(v) for v in value]
        elif pd.isna(value) or (isinstance(value, float) and not math.isfinite(value)):
            plain[name] = None
        else:
            plain[name] = value.item() if hasattr(value, "item") else value
    return plain
