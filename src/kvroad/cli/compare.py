"""``kvroad compare``: studies side by side, with an exit status that is a regression gate."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd

from kvroad.analysis.compare import NONE_BEYOND, REGRESSION, Comparison, compare
from kvroad.analysis.saved_study import find_study
from kvroad.analysis.tables import metric
from kvroad.analysis.words import number, percent, ratio_text, records, tokens_text, value_text
from kvroad.cli.status import DONE, FAILED, NOT_COMPARABLE, OPEN, REPORTS, RESULTS, NotUnderstood
from kvroad.cli.table import table_lines
from kvroad.errors import UserError

__all__ = ["SCHEMA", "run"]

SCHEMA = "kvroad.compare/1"
_HEADER = (
    *("study", "arm", "prompt", "metric", "value", "reference", "ratio", "interval"),
    *("launches", "verdict", "gate"),
)
_WORDS = {DONE: "no regression", FAILED: "regression", OPEN: "open", NOT_COMPARABLE: "refused"}


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; see `status_of` for the exit status."""
    metrics = arguments.metrics.split(",") if arguments.metrics else None
    try:
        studies = [find_study(word, REPORTS, RESULTS) for word in arguments.studies]
        found = compare(studies, metrics, arguments.across_hosts)
    except UserError as error:
        raise NotUnderstood(str(error)) from error
    status = status_of(found)
    if arguments.json:
        print(json.dumps(_plain(found, status), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        for line in _lines(found, status):
            print(line)
    # A road that is not proven any more is no matter of launches: it never passes.
    is_passed = status == OPEN and arguments.pass_inconclusive and not found.lost
    return DONE if is_passed else status


def status_of(found: Comparison) -> int:
    """Return the exit status: the worst row counts, and rows before what was refused."""
    gates = list(found.rows["gate"]) if len(found.rows) else []
    if REGRESSION in gates:
        return FAILED
    if not gates:
        return NOT_COMPARABLE
    return DONE if all(gate == NONE_BEYOND for gate in gates) and not found.refused else OPEN


def _lines(found: Comparison, status: int) -> Iterator[str]:
    rows = records(found.rows)
    if rows:
        yield "unpaired: launches of different runs, not interleaved; launch values, Welch, Holm"
        yield from table_lines(_HEADER, list(_table(found)))
        yield ""
    for row in rows:
        if row["note"] and (note := _note(row["note"])):
            where = f"{row['study']}, {row['label']} at {row['prompt_tokens']:,}"
            yield f"note: {where}, {metric(row['metric']).label}: {note}"
    for text in found.refused:
        yield f"not compared: {text}"
    for text in found.notes:
        yield f"note: {text}"
    for each in found.differences:
        yield f"differs: {each.study}: {each.what}: {each.other}, reference: {each.reference}"
    yield _conclusion(found, status)


def _note(note: str) -> str:
    """Leave out of a note what holds for every row here."""
    parts = [part for part in note.split("; ") if not part.startswith("not interleaved")]
    return "; ".join(parts)


def _table(found: Comparison) -> Iterator[list[str]]:
    for row in records(found.rows):
        is_ratio = row["tested"] == "ratio"
        ratio = ratio_text(row["ratio"]) if is_ratio else f"{row['difference']:+.3g} {row['unit']}"
        low, high = (row[f"{row['tested']}_{end}"] for end in ("low", "high"))
        yield [
            row["study"],
            row["label"],
            tokens_text(row["prompt_tokens"]),
            row["metric"],
            value_text(row["arm_value"], row["unit"]),
            value_text(row["baseline_value"], row["unit"]),
            ratio,
            "none" if pd.isna(low) else f"{number(low)} to {number(high)}",
            f"{row['n_arm']} and {row['n_baseline']}",
            row["verdict"],
            row["gate"],
        ]


def _conclusion(found: Comparison, status: int) -> str:
    rows = records(found.rows)
    n_open = sum(row["gate"] not in (REGRESSION, NONE_BEYOND) for row in rows)
    if status == FAILED:
        worst = [row for row in rows if row["gate"] == REGRESSION]
        listed = ", ".join(
            f"{row['metric']} of {row['label']} at {row['prompt_tokens']:,} in {row['study']}"
            for row in worst
        )
        return f"REGRESSION in {len(worst)} of {len(rows)} comparisons: {listed}"
    if status == NOT_COMPARABLE:
        return "NOTHING COMPARED: see what is said above"
    margins = sorted({float(row["margin"]) for row in rows if not pd.isna(row["margin"])})
    margin = " and ".join(percent(m) for m in margins) or "no margin"
    if status == DONE:
        return f"NO REGRESSION: all {len(rows)} comparisons rule out more than {margin}"
    refused = f", {len(found.refused)} were not made" if found.refused else ""
    lost = f"; ROAD NOT PROVEN any more: {', '.join(found.lost)}" if found.lost else ""
    return (
        f"INCONCLUSIVE: no regression is shown; {n_open} of {len(rows)} comparisons do not rule "
        f"out more than {margin}{refused}{lost}"
    )


def _plain(found: Comparison, status: int) -> dict[str, Any]:
    rows = json.loads(found.rows.to_json(orient="records")) if len(found.rows) else []
    return {
        "schema": SCHEMA,
        "result": _WORDS[status],
        "is_paired": False,
        "rows": rows,
        "refused": list(found.refused),
        "lost_roads": list(found.lost),
        "differences": [asdict(each) for each in found.differences],
        "notes": list(found.notes),
    }
