"""Launches in the order in which they were executed: drift, outliers, order."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from kvroad.analysis.verdict import order_note
from kvroad.publish.figures.picture import (
    NOTHING_PROVEN,
    Picture,
    Tables,
    colour_of,
    legend_beside,
    log_ticks,
    marker_of,
    notes,
)
from kvroad.publish.palette import GRID, SOFT

__all__ = ["launches_picture"]

_COLUMNS = [
    *("executed_order", "planned_order", "cell", "arm", "prompt_tokens"),
    *("block", "outcome", "pull_ms", "relative"),
]
_NOTE = (
    "A mark per cell: its pull time over the geometric mean of its arm and prompt length. "
    "Bands: blocks. Crosses at the foot: cells without a number."
)


def launches_picture(tables: Tables) -> Picture:
    """Draw each cell's pull time, relative to its arm and prompt length, in executed order."""
    data = _launch_data(tables)
    arms = tables.design.shown_arms
    values = data["relative"].dropna()
    left_out = ""
    if values.empty:
        left_out = NOTHING_PROVEN
    elif tables.cells["block"].nunique() < 2:
        left_out = "there is one launch of each arm, so nothing can drift"
    spread = f" They lie between {values.min():.2f} and {values.max():.2f}." if len(values) else ""
    return Picture(
        name="launches",
        title="Launches in executed order",
        caption=(
            "Every cell in the order in which it ran, its pull time relative to the mean of its"
            " arm and prompt length: a slope is drift, a mark far from 1 stands apart."
        ),
        alt=f"{order_note(tables.cells, tables.design)}{spread}",
        note=notes(tables.cells, _NOTE),
        left_out=left_out,
        height=3.6,
        data=data,
        draw=lambda axes, frame: _draw_launches(axes, frame, arms),
    )


def _launch_data(tables: Tables) -> pd.DataFrame:
    planned = {c.cell: i for i, c in enumerate(tables.design.cells, start=1)}
    cells = tables.cells.assign(planned_order=tables.cells["cell"].map(planned))
    summary = tables.summary[tables.summary["metric"] == "pull_ms"]
    means = summary[["arm", "prompt_tokens", "value"]]
    frame = cells.merge(means, on=["arm", "prompt_tokens"], how="left")
    proven = frame["outcome"] == "proven"
    frame["relative"] = (frame["pull_ms"] / frame["value"]).where(proven)
    # A proven cell of an engine that serves alone has no pull to draw.
    ran = frame[frame["executed_order"].notna() & (frame["relative"].notna() | ~proven)]
    return ran.sort_values("executed_order").reindex(columns=_COLUMNS)


def _draw_launches(axes: Axes, data: pd.DataFrame, arms: list[str]) -> None:
    order = data["executed_order"].astype(int)
    blocks = data["block"].astype(int)
    for block in sorted(set(blocks)):
        places = order[blocks == block]
        if block % 2 == 0 and len(places):
            axes.axvspan(
                places.min() - 0.5, places.max() + 0.5, color=GRID, alpha=0.45, linewidth=0
            )
    axes.axhline(1, color=SOFT, linewidth=1)
    for position, arm in enumerate(arms):
        drawn = (data["arm"] == arm) & data["relative"].notna()
        if drawn.any():
            axes.plot(
                order[drawn],
                data.loc[drawn, "relative"],
                marker_of(position),
                color=colour_of(position),
                markersize=5,
                label=arm,
            )
    axes.set_yscale("log")
    values = data["relative"].dropna()
    reach = max(values.max(), 1 / values.min(), 1.02) ** 1.15
    axes.set_ylim(1 / reach, reach)
    if reach > 3:
        log_ticks(axes.yaxis)
    else:
        fine = (0.92, 0.96, 0.98, 1, 1.02, 1.04, 1.08)
        coarse = (0.4, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 2.5)
        ticks = [t for t in (coarse if reach > 1.11 else fine) if 1 / reach < t]
        axes.set_yticks([t for t in ticks if t < reach])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    bad = order[data["relative"].isna()]
    axes.plot(bad, [0.03] * len(bad), "x", color=SOFT, transform=axes.get_xaxis_transform())
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("cells in executed order")
    axes.set_ylabel("pull time over its mean\n(log scale)")
    legend_beside(axes, "arm")
