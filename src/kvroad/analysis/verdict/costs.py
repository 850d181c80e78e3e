"""The cost model in words: a line per series, break-even sizes, how well it predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from kvroad.analysis.cost_model import FITS, CostTables, PointRow
from kvroad.analysis.words import NOT_BOUNDED, number, percent, records, rows_of

__all__ = [
    "CostLine",
    "PointLine",
    "break_even_notes",
    "cost_lines",
    "held_out_note",
    "how_costs_are_read",
    "point_lines",
]


# Of the columns of a parameter: its value and its limits.
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True)
class CostLine:
    """One series as texts: what its pull is made of, and how well that describes it."""

    series: str
    road: str
    start: str
    per_descriptor: str
    rate: str
    error: str
    note: str


@dataclass(frozen=True)
class PointLine:
    """One point as texts."""

    series: str
    pieces: str
    pull: str
    rate: str
    share: str


def cost_lines(tables: CostTables, measure: str = "pull_ms") -> list[CostLine]:
    """Return a line per series for the pull, or for ``post_ms``."""
    rows = records(tables.models[tables.models["measure"] == measure])
    return [
        CostLine(
            series=str(row["series"]),
            road=str(row["road"]),
            start=_with_limits("µs", *(row[f"t0{end}_us"] for end in _ENDS)),
            per_descriptor=_with_limits("µs", *(row[f"per_descriptor{end}_us"] for end in _ENDS)),
            rate=_with_limits("GB/s", *(row[f"gb_per_s{end}"] for end in _ENDS)),
            error=f"{100 * row['rms_error']:.1f} % over {row['n_points']} points",
            note=str(row["note"]),
        )
        for row in rows
    ]


def _with_limits(unit: str, value: float, low: float, high: float) -> str:
    if pd.isna(value):
        return "not told"
    # A cost per byte that may be nothing leaves the rate without an upper end.
    above = "no limit" if pd.isna(high) else number(high)
    limits = "no interval" if pd.isna(low) else f"{number(low)} to {above}"
    if low == 0 and pd.isna(high):
        limits = NOT_BOUNDED
    return f"{number(value)} {unit} ({limits})"


def point_lines(tables: CostTables) -> list[PointLine]:
    """Return a line per point of the pulls: pieces, time, rate, operations' share."""
    return [
        PointLine(
            series=str(row["series"]),
            pieces=f"{_count(row['descriptors'])} of {row['descriptor_bytes']:,} bytes",
            pull=f"{number(row['measured_ms'])} ms (fitted {number(row['predicted_ms'])})",
            rate=_rate_text(row),
            share="not told"
            if pd.isna(row["operations_share"])
            else f"{100 * row['operations_share']:.0f} % ({100 * row['operations_share_low']:.0f}"
            f" to {100 * row['operations_share_high']:.0f})",
        )
        for row in rows_of(tables.points[tables.points["measure"] == "pull_ms"], PointRow)
    ]


def _count(descriptors: float) -> str:
    return f"{descriptors:,.0f}" if float(descriptors).is_integer() else f"{descriptors:,.1f}"


def _rate_text(row: PointRow) -> str:
    text = f"{number(row['effective_gb_per_s'])} GB/s"
    if not pd.isna(row["effective_share"]):
        share = f"{100 * row['effective_share']:.0f} %"
        text += f", {share} of the nominal {number(row['nominal_gb_per_s'])}"
    return text


def break_even_notes(tables: CostTables) -> list[str]:
    """Return a sentence per pair of series and size of pull."""
    notes = []
    for row in records(tables.break_even):
        pair = f"{row['series']} and {row['other']}, pulls of {row['pull_bytes']:,} bytes"
        if pd.isna(row["break_even_bytes"]):
            notes.append(f"{pair}: {row['note']}.")
            continue
        high = row["break_even_high_bytes"]
        above = "no limit" if math.isinf(high) else f"{high:,.0f}"
        said = f" ({row['note']})" if row["note"] else ""
        notes.append(
            f"{pair}: equal at descriptors of {row['break_even_bytes']:,.0f} bytes"
            f" ({row['break_even_low_bytes']:,.0f} to {above}){said}; with smaller ones"
            f" {row['faster_below']} is faster, with larger ones {row['faster_above']}."
        )
    return notes


def held_out_note(tables: CostTables) -> str:
    """Return how well sizes left out of a fit are predicted; empty where none could be."""
    rows = tables.held_out[tables.held_out["measure"] == "pull_ms"]
    if rows.empty:
        return ""
    inner, outer = rows[~rows["is_extrapolated"]], rows[rows["is_extrapolated"]]
    parts = [
        f"{int(group['is_within'].sum())} of {len(group)} {what} within the stated error"
        f" (median error {percent(round(float(group['error'].abs().median()), 3))}, stated"
        f" {percent(round(float(group['stated_error'].median()), 3))})"
        for what, group in (("points between the others", inner), ("at either end", outer))
        if len(group)
    ]
    return f"Each descriptor size predicted by a fit without it: {', '.join(parts)}."


def how_costs_are_read() -> str:
    """Return how the model is to be read."""
    return (
        "Time of a pull = start + cost per descriptor x descriptors + bytes / rate, fitted to"
        " launch values with relative residuals, none below zero, outliers weighted down (soft L1)."
        " Intervals leave out one point with all of its launches at a time (jackknife, t);"
        " break-even sizes have Fieller's. A model whose points are off by more than"
        f" {percent(FITS)} explains nothing."
    )
