"""Extra time to first token by transport: quoted rows, and ours where it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kvroad.analysis.verdict import extra_ttft, number, records, tokens_text
from kvroad.publish.figures.picture import (
    Picture,
    Tables,
    colour_of,
    legend_above,
    name_rows,
    write_beside,
)
from kvroad.publish.palette import INK, PAPER, SOFT
from kvroad.study.serving import AGGREGATED

__all__ = ["ttft_picture"]

# The axis holds no more than this factor.
_DECADES = 1e7
_COLUMNS = ["kind", "road", "prompt_tokens", "low_ms", "value_ms", "high_ms", "source"]
_QUOTED = ("quoted, its source calls it measured", "quoted, an estimate of its source")
_MEASURED = "measured here"


def ttft_picture(tables: Tables) -> Picture:
    """Draw what a transport adds to the time to first token, on a log scale.

    Ours is the metric ``extra_ttft_ms``, the difference to the arm ``none`` (aggregated
    serving, no transfer), so it is there only where that arm ran: a row per arm and prompt
    length with its interval. Quoted rows come from the study's claims.
    """
    data = _ttft_data(tables)
    ours = data[data["kind"] == _MEASURED]
    missing = _why_not_ours(tables)
    left_out = "" if len(data) else f"{missing}; the study's claims quote none either"
    sources = " and ".join(dict.fromkeys(data.loc[data["kind"] != _MEASURED, "source"]))
    note = f"Quoted: {sources}; not measured here." if sources else ""
    if ours.empty:
        note = f"{note} Ours: none, {missing}.".strip()
    texts = [
        f"{row['road']}, {row['kind']}: {text}."
        for row, text in zip(records(data), _range_texts(data), strict=True)
    ]
    return Picture(
        name="extra_ttft",
        title="Extra time to first token by transport",
        caption=(
            "What moving the KV cache adds to the time to first token, against serving without"
            " a transfer. Hollow rows are quoted; "
            + (
                "solid ones were measured in this study."
                if len(ours)
                else f"this study has none of its own: {missing}."
            )
        ),
        alt=" ".join(texts),
        note=note,
        left_out=left_out,
        height=1.9 + 0.36 * max(len(data), 3),
        data=data,
        draw=_draw_ttft,
    )


def _ttft_data(tables: Tables) -> pd.DataFrame:
    guide = tables.design.quoted.guide if tables.design.quoted else {}
    quoted = [
        {
            "kind": _QUOTED[0] if row["is_measured"] else _QUOTED[1],
            "road": row["road"],
            "low_ms": float(row["low"]),
            "high_ms": float(row["high"]),
            "source": guide["source"],
        }
        for row in guide.get("extra_ttft_ms") or ()
    ]
    ours = [
        {**row, "kind": _MEASURED, "road": row["arm"], "source": tables.design.study}
        for row in extra_ttft(tables.summary, tables.design)
    ]
    return pd.DataFrame([*quoted, *ours], columns=_COLUMNS)


def _why_not_ours(tables: Tables) -> str:
    transports = {cell.transport for cell in tables.design.cells}
    if AGGREGATED not in transports:
        return "the arm none (serving without a transfer) was not run"
    if "extra_ttft_ms" not in tables.cells:
        return "the engine serves no requests, so there is no time to first token"
    return "no block has a proven launch both of an arm and of the arm none"


def _range_texts(data: pd.DataFrame) -> Iterator[str]:
    """Yield each row's value with its interval, or the range that was quoted."""
    for value, low, high in zip(data["value_ms"], data["low_ms"], data["high_ms"], strict=True):
        if pd.notna(value):
            limits = f" ({number(low)} to {number(high)})" if pd.notna(low) else ""
            yield f"{number(value)} ms{limits}"
        elif low == high:
            yield f"{low:,.0f} ms"
        else:
            yield f"{low:,.0f} to {high:,.0f} ms"


def _ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two values, with twice and five times them where few."""
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for power in decades for step in steps if low <= (t := step * 10.0**power) <= high]


def _draw_ttft(axes: Axes, data: pd.DataFrame) -> None:
    known = [*data["low_ms"], *data["high_ms"], *data["value_ms"]]
    positive = [v for v in known if pd.notna(v) and v > 0] or [1.0]
    # An interval down to nothing would stretch the axis without end.
    floor, most = max(0.5 * min(positive), max(positive) / _DECADES), max(positive)
    axes.set_xscale("log")
    labels = []
    texts = list(_range_texts(data))
    for place, row in enumerate(records(data)):
        is_ours = row["kind"] == _MEASURED
        ends = [row["value_ms"] if pd.isna(row[n]) else row[n] for n in ("low_ms", "high_ms")]
        low, high = (max(end, floor) for end in ends)
        colour = colour_of(0) if is_ours else SOFT
        if is_ours:
            axes.plot([low, high], [place, place], color=colour, linewidth=2)
            if ends[0] < floor:
                axes.plot(low, place, "<", color=colour, markersize=4)
            # What is no more than nothing has no place on a log axis: an arrow at its end.
            mark = "o" if row["value_ms"] >= floor else "<"
            axes.plot(max(row["value_ms"], floor), place, mark, color=colour)
        else:
            # A single number is drawn as a short bar, so that its kind can be seen.
            wide = (low / 1.08, high * 1.08) if low == high else (low, high)
            axes.barh(
                place,
                wide[1] - wide[0],
                left=wide[0],
                height=0.55,
                facecolor=PAPER,
                edgecolor=colour,
                hatch="" if row["kind"] == _QUOTED[0] else "////",
            )
        write_beside(axes, texts[place], (high * 1.08, place), 5, fontsize=8.5, color=INK)
        tokens = row["prompt_tokens"]
        labels.append(
            row["road"] + (f", {tokens_text(int(tokens))} tokens" if pd.notna(tokens) else "")
        )
    name_rows(axes, labels)
    axes.set_xlim(0.9 * floor, 30 * most)
    axes.set_xticks(_ticks(floor, most))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.set_xlabel("extra time to first token (ms, log scale)")
    kinds = set(data["kind"])
    handles = [
        Patch(facecolor=PAPER, edgecolor=SOFT, hatch=hatch, label=kind)
        for kind, hatch in zip(_QUOTED, ("", "////"), strict=True)
        if kind in kinds
    ]
    if _MEASURED in kinds:
        handles.append(Patch(facecolor=colour_of(0), label=_MEASURED))
    legend_above(axes, 3, handles=handles)
