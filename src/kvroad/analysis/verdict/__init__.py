"""Contrasts to a verdict: a word and a sentence per row, and the files that carry it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvroad.analysis.tables import read_design, write_table
from kvroad.analysis.verdict.costs import (
    break_even_notes,
    cost_lines,
    held_out_note,
    how_costs_are_read,
    point_lines,
)
from kvroad.analysis.verdict.documents import (
    SCHEMA,
    Block,
    Line,
    answers,
    blocks,
    markdown,
    verdict_json,
)
from kvroad.analysis.verdict.notes import flag_notes, launch_value, order_note, warmup_note
from kvroad.analysis.verdict.sentences import Entry, RefusalRow, VerdictRow, refusal_text
from kvroad.analysis.verdict.serving import cache_note, extra_ttft, served_notes
from kvroad.analysis.verdict.words import launches_needed, refusals, verdict_frame
from kvroad.analysis.words import (
    number,
    percent,
    ratio_text,
    records,
    rows_of,
    tokens_text,
    value_text,
)
from kvroad.files import write_json, write_text

__all__ = [
    "SCHEMA",
    "Block",
    "Entry",
    "Line",
    "RefusalRow",
    "VerdictRow",
    "answers",
    "blocks",
    "break_even_notes",
    "build",
    "cache_note",
    "cost_lines",
    "extra_ttft",
    "flag_notes",
    "held_out_note",
    "how_costs_are_read",
    "launch_value",
    "launches_needed",
    "markdown",
    "number",
    "order_note",
    "percent",
    "point_lines",
    "ratio_text",
    "records",
    "refusal_text",
    "refusals",
    "rows_of",
    "served_notes",
    "tokens_text",
    "value_text",
    "verdict_frame",
    "verdict_json",
    "warmup_note",
]


def build(
    contrasts_parquet: Path | str,
    cells_parquet: Path | str,
    design_path: Path | str,
    out_dir: Path | str,
) -> None:
    """Write ``verdict.parquet``, ``.csv``, ``.json`` and ``.md`` into ``out_dir``."""
    design, out = read_design(Path(design_path)), Path(out_dir)
    cells = pd.read_parquet(cells_parquet)
    frame = verdict_frame(pd.read_parquet(contrasts_parquet), cells, design)
    write_table(frame, out / "verdict")
    write_json(
        out / "verdict.json", verdict_json(frame, cells, design), sort_keys=False, allow_nan=False
    )
    write_text(out / "verdict.md", markdown(frame, cells, design))
