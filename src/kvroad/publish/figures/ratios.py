"""The answer in one picture: every arm's pull time as a ratio, with its interval and word."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kvroad.analysis.tables import margin, metric
from kvroad.analysis.verdict import number, percent, records, tokens_text
from kvroad.publish.figures.picture import (
    Picture,
    Tables,
    colour_of,
    legend_above,
    log_ticks,
    name_rows,
    notes,
    stacked,
)
from kvroad.publish.palette import GRID, INK, PAPER, SOFT

__all__ = ["ratios_picture"]

_COLUMNS = [
    *("kind", "arm", "baseline", "prompt_tokens", "ratio"),
    *("ratio_low", "ratio_high", "verdict", "margin"),
]
# An interval is drawn this far beyond the outermost ratio.
_ROOM = 3.0
# Colour and mark of each word: neither is needed to read the other.
_LOOKS = {
    "faster": (0, "<"),
    "slower": (3, ">"),
    "same": (7, "s"),
    "inconclusive": (7, "o"),
    "quoted": (7, "D"),
}


def ratios_picture(tables: Tables) -> Picture:
    """Draw a row per contrast and prompt length: ratio of pull times, interval, word.

    Quoted ratios of the same arms' transports stand below as hollow diamonds.
    """
    data = _ratio_data(tables)
    ours = data[data["kind"] == "measured"]
    shown = percent(1 - tables.design.alpha)
    share = margin(tables.design.margins, metric("pull_ms"))
    band = "" if math.isnan(share) else f" Band: the margin of {percent(share)}."
    left_out = ""
    if not tables.design.contrasts:
        left_out = "the study has one arm, so there is nothing to compare it with"
    elif ours.empty:
        left_out = "no contrast has proven launches on both sides"
    pulls = tables.verdict[tables.verdict["metric"] == "pull_ms"]
    note = (
        f"Left of 1: faster. Lines: {shown} intervals, cut where they leave the picture.{band}"
        " Hollow: no difference shown."
    )
    return Picture(
        name="ratios",
        title="KV pull time as a ratio to its baseline",
        caption=(
            f"Ratio of pull times, arm over baseline, with {shown} intervals across launches"
            " and the verdict's word."
            + (
                " Diamonds are quoted from the publication and were not measured here."
                if "quoted" in set(data["kind"])
                else ""
            )
        ),
        alt=" ".join(pulls["sentence"]),
        note=notes(tables.cells, note),
        left_out=left_out,
        height=1.7 + 0.27 * max(len(data), 3),
        data=data,
        draw=lambda axes, rows: _draw_ratios(axes, rows, tables.design.baseline),
    )


def _ratio_data(tables: Tables) -> pd.DataFrame:
    verdict, quoted = tables.verdict, tables.design.quoted
    chosen = verdict[(verdict["metric"] == "pull_ms") & (verdict["tested"] == "ratio")]
    frames = [chosen.assign(kind="measured")]
    ratios = quoted.ratios.get("pull_ms", {}) if quoted else {}
    if quoted and ratios and len(chosen):
        rows = [
            {
                "kind": "quoted",
                "arm": quoted.arm,
                "baseline": quoted.baseline,
                "prompt_tokens": tokens,
                "ratio": ratio,
                "verdict": "quoted",
            }
            for tokens, ratio in sorted(ratios.items())
        ]
        frames.append(pd.DataFrame(rows))
    return stacked(frames, _COLUMNS)


def _draw_ratios(axes: Axes, data: pd.DataFrame, main: str) -> None:
    low, high = data["ratio"].min() / _ROOM, data["ratio"].max() * _ROOM
    low = min(max(low, data["ratio_low"].min() / 1.1), 0.9)
    high = max(min(high, data["ratio_high"].max() * 1.1), 1.1)
    shares = data["margin"].dropna()
    if len(shares):
        bound = 1 + float(shares.iloc[0])
        axes.axvspan(1 / bound, bound, color=GRID, alpha=0.6, linewidth=0)
    axes.axvline(1, color=SOFT, linewidth=1)
    labels = []
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    for place, row in enumerate(records(data)):
        word = str(row["verdict"]).split(" within")[0]
        colour, marker = _LOOKS.get(word, _LOOKS["inconclusive"])
        is_hollow = word in ("inconclusive", "quoted")
        axes.plot([row["ratio_low"], row["ratio_high"]], [place, place], color=colour_of(colour))
        axes.plot(
            row["ratio"],
            place,
            marker,
            color=colour_of(colour),
            markerfacecolor=PAPER if is_hollow else colour_of(colour),
            markersize=7,
        )
        # A quoted number has the digits that were published.
        ratio = f"{row['ratio']:g}" if row["kind"] == "quoted" else number(row["ratio"])
        axes.annotate(
            f"{ratio}x {row['verdict']}",
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=SOFT if word == "quoted" else INK,
        )
        pair = f" against {row['baseline']}" if row["baseline"] != main else ""
        labels.append(f"{row['arm']}{pair}, {tokens_text(int(row['prompt_tokens']))}")
    name_rows(axes, labels, fontsize=8.5)
    log_ticks(axes.xaxis)
    axes.set_xlabel(f"ratio to {' or '.join(dict.fromkeys(data['baseline']))} (log scale)")
    legend_above(
        axes,
        5,
        handles=[
            Line2D(
                [],
                [],
                marker=_LOOKS[word][1],
                linestyle="none",
                color=colour_of(_LOOKS[word][0]),
                markerfacecolor=PAPER if word in ("inconclusive", "quoted") else None,
                label=word,
            )
            for word in _LOOKS
            if data["verdict"].str.startswith(word).any()
        ],
        fontsize=8.5,
    )
