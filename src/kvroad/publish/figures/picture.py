"""What a picture is made from, how it looks, and the files it leaves."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from kvroad.analysis.cost_model import CostTables
from kvroad.analysis.tables import DesignFile
from kvroad.analysis.verdict import refusals
from kvroad.files import write_atomic
from kvroad.publish.palette import GRID, INK, PALETTE, PAPER, SOFT

__all__ = [
    "NOTHING_PROVEN",
    "Picture",
    "Tables",
    "colour_of",
    "legend_above",
    "legend_beside",
    "log_ticks",
    "marker_of",
    "name_rows",
    "notes",
    "save",
    "stacked",
    "write_beside",
]

# Markers tell arms apart without colour.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
NOTHING_PROVEN = "no cell has its road proven, so there is no number to draw"
_RC: dict[Any, Any] = {
    "svg.hashsalt": "kvroad",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "axes.facecolor": "none",
}
_DPI = 150
_WIDTH = 7.8


@dataclass(frozen=True)
class Tables:
    """The frames that pictures are drawn from; nothing is computed from them here."""

    cells: pd.DataFrame
    summary: pd.DataFrame
    verdict: pd.DataFrame
    costs: CostTables
    design: DesignFile


@dataclass(frozen=True)
class Picture:
    """One picture, or why there is none.

    Parameters
    ----------
    name
        Stem of its files.
    caption
        What is shown, each quantity defined.
    note
        Small print inside the picture: statistic, interval, what is missing.
    alt
        The finding in words, for who cannot see it.
    left_out
        Why the picture has nothing to show; empty where it has.
    draw
        Draws ``data`` into the axes.
    """

    name: str
    title: str
    caption: str
    alt: str = ""
    note: str = ""
    left_out: str = ""
    height: float = 4.4
    style: str = "whitegrid"
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    draw: Callable[[Axes, pd.DataFrame], None] | None = None


def colour_of(position: int) -> str:
    """Return the palette's colour of an arm by its place in the design."""
    return PALETTE[position % len(PALETTE)]


def marker_of(position: int) -> str:
    """Return the marker of an arm by its place."""
    return _MARKERS[position % len(_MARKERS)]


def stacked(frames: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """Return the columns of frames one below the other; an empty frame where all are empty."""
    # The columns of an empty frame are objects, and would make those of the whole objects too.
    kept = [frame.reindex(columns=columns) for frame in frames if len(frame)]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=columns)


def legend_beside(axes: Axes, title: str) -> None:
    """Put the legend to the right of the axes, where it covers no mark."""
    axes.legend(title=title, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def legend_above(axes: Axes, n_columns: int, **options: Any) -> None:
    """Put the legend in the figure's upper right corner, beside the title."""
    axes.figure.legend(frameon=False, loc="outside upper right", ncols=n_columns, **options)


def name_rows(axes: Axes, labels: Sequence[str], **text: Any) -> None:
    """Name the rows of a picture at 0, 1, 2 … on its y axis, from the top down."""
    axes.set_yticks(range(len(labels)), labels, **text)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def write_beside(
    axes: Axes, text: str, at: tuple[float, float], points: float, **options: Any
) -> None:
    """Write a text that many points to the right of a place; to the left where negative."""
    options = {"va": "center", "textcoords": "offset points", "xytext": (points, 0), **options}
    axes.annotate(text, at, ha="right" if points < 0 else "left", **options)


def log_ticks(axis: Any) -> None:
    """Put plain numbers at 1, 2 and 5 of each decade of a log axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def notes(cells: pd.DataFrame, note: str) -> str:
    """Return a picture's note, and below it the arms that carry no number, a line each."""
    parts = [note]
    for arm, rows in refusals(cells).groupby("arm", sort=False):
        row = rows.iloc[0]
        roads = f" (road expected {row['road_expected']}, seen {row['road_seen'] or 'none'})"
        n = int(rows["n_cells"].sum())
        outcome = " or ".join(dict.fromkeys(rows["outcome"]))
        cell = "cell" if n == 1 else "cells"
        parts.append(f"No numbers from {n} {outcome} {cell} of {arm}{roads}.")
    return "\n".join(parts)


def _style(name: str) -> Any:
    return {**sns.axes_style(name), **_RC}


def save(picture: Picture, folder: Path) -> list[Path]:
    """Write ``<name>.svg``, ``.png`` and ``.csv``; nothing for a picture that is left out."""
    if picture.draw is None or picture.left_out:
        return []
    with mpl.rc_context(_style(picture.style)):
        figure, axes = plt.subplots(figsize=(_WIDTH, picture.height), layout="constrained")
        picture.draw(axes, picture.data)
        axes.set_title(picture.title, loc="left")
        note = "\n".join(textwrap.fill(part, 118) for part in picture.note.splitlines())
        figure.supxlabel(note, fontsize=8, color=SOFT, ha="left", x=0.01)
        svg, png, csv = (folder / f"{picture.name}.{form}" for form in ("svg", "png", "csv"))
        # Dates and versions in the files would make equal figures differ.
        bare = dict.fromkeys(("Date", "Creator"))
        write_atomic(
            svg,
            lambda path: figure.savefig(path, format="svg", metadata=bare, transparent=True),
        )
        write_atomic(
            png,
            lambda path: figure.savefig(
                path, format="png", dpi=_DPI, metadata={"Software": None}, facecolor=PAPER
            ),
        )
        plt.close(figure)
    write_atomic(csv, lambda path: picture.data.to_csv(path, index=False, lineterminator="\n"))
    return [svg, png, csv]
