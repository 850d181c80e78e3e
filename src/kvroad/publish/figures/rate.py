"""Rate of the largest pull against the size of its pieces."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from kvroad.analysis.cost_model import CostTables
from kvroad.analysis.verdict import break_even_notes, point_lines
from kvroad.publish.figures.picture import (
    NOTHING_PROVEN,
    Picture,
    Tables,
    colour_of,
    legend_beside,
    log_ticks,
    marker_of,
    notes,
    stacked,
    write_beside,
)
from kvroad.publish.palette import SOFT

__all__ = ["rate_picture"]

_COLUMNS = ["kind", "series", "other", "pull_bytes", "descriptor_bytes", "gb_per_s"]
_NOTE = (
    "Marks: measured (geometric mean over launches, one pull at a time). Lines: the cost model, "
    "inside the measured sizes. Dotted: sizes at which two of them are equal."
)
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def rate_picture(tables: Tables) -> Picture:
    """Draw the rate of the largest pull against descriptor size: points, fits, break-even.

    It is left out where no series has pieces of two sizes: one point is no dependence.
    """
    data = _rate_data(tables.costs)
    measured = data[data["kind"] == "measured"]
    sizes = measured.groupby("series")["descriptor_bytes"].nunique()
    left_out = ""
    if measured.empty:
        left_out = NOTHING_PROVEN
    elif sizes.max() < 2:
        left_out = (
            "no series was measured with pieces of two sizes; variants such as regions8 or b16"
            " change them"
        )
    pull = int(measured["pull_bytes"].iloc[0]) if len(measured) else 0
    rates = [f"{line.series}, {line.pieces}: {line.rate}." for line in point_lines(tables.costs)]
    return Picture(
        name="rate",
        title=f"Rate of a pull of {pull:,} bytes, by descriptor size",
        caption=(
            "Rate of the largest pull against the bytes of one descriptor, per road and way of"
            " issuing, with the fitted cost model and the sizes at which two are equally fast."
        ),
        alt=" ".join([*rates, *break_even_notes(tables.costs)]),
        note=notes(tables.cells, _NOTE),
        left_out=left_out,
        data=data,
        draw=_draw_rates,
    )


def _rate_data(costs: CostTables) -> pd.DataFrame:
    """Return points, curves and break-even sizes of the largest pull; nothing is computed."""
    points = costs.points[costs.points["measure"] == "pull_ms"]
    largest = points["pull_bytes"].max() if len(points) else 0
    known = costs.break_even.dropna(subset="break_even_bytes")
    frames = [
        points.rename(columns={"effective_gb_per_s": "gb_per_s"}).assign(kind="measured"),
        costs.curves.assign(kind="fit"),
        known[~known["is_extrapolated"].astype(bool)]
        .rename(columns={"break_even_bytes": "descriptor_bytes"})
        .assign(kind="break-even"),
    ]
    return stacked([frame[frame["pull_bytes"] == largest] for frame in frames], _COLUMNS)


def _draw_rates(axes: Axes, data: pd.DataFrame) -> None:
    measured = data[data["kind"] == "measured"]
    for index, name in enumerate(dict.fromkeys(measured["series"])):
        rows = data[data["series"] == name]
        marks, line = rows[rows["kind"] == "measured"], rows[rows["kind"] == "fit"]
        points = f"{len(marks)} size{'s' if len(marks) != 1 else ''}"
        axes.plot(
            marks["descriptor_bytes"],
            marks["gb_per_s"],
            marker_of(index),
            color=colour_of(index),
            label=f"{name}\n({points}{'' if len(line) else ', no fit'})",
        )
        axes.plot(line["descriptor_bytes"], line["gb_per_s"], color=colour_of(index))
    # In a frame of points and curves the sizes are floats, whole ones and others.
    for size in data.loc[data["kind"] == "break-even", "descriptor_bytes"]:
        axes.axvline(size, color=SOFT, linestyle=":")
        write_beside(
            axes,
            f"equal at {_size_text(size, 0)}",
            (size, 0.02),
            4,
            va="baseline",
            xycoords=("data", "axes fraction"),
            fontsize=8,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(_size_text)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    axes.set_xlabel("size of a descriptor (log scale)")
    axes.set_ylabel("rate of a pull (GB/s, log scale)")
    legend_beside(axes, "series")


def _size_text(size: float, _: float) -> str:
    """Return a size in the largest binary unit that it fills."""
    for scale, unit in _UNITS:
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"
