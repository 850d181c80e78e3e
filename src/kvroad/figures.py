"""Frames to pictures: SVG and PNG, each with its data as CSV beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from kvroad.cost_model import CostTables, read_tables
from kvroad.tables import Design, read_design, write_atomic
from kvroad.verdict import (
    number,
    percent,
    refusals,
    tokens_text,
    value_text,
)

__all__ = ["build", "plot_post_split", "plot_pull_time", "plot_rate"]

# The order of seaborn's colour-blind-safe palette; markers tell arms apart without colour.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_RC = {
    "svg.hashsalt": "kvroad",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
}
_DPI = 150
# Above this spread a linear axis would press the fast arm's values into one line.
_LOG_SPREAD = 8.0
# With more arms than this, values written beside their marks cover other marks.
_NAMED_ARMS = 3
_POINT_COLUMNS = [
    "arm",
    "prompt_tokens",
    "kind",
    "block",
    "n_launches",
    "value_ms",
    "low_ms",
    "high_ms",
]
_RATE_COLUMNS = ["kind", "series", "other", "pull_bytes", "descriptor_bytes", "gb_per_s"]
_SPLIT_COLUMNS = ["arm", "prompt_tokens", "n_launches", "post_ms", "after_post_ms", "pull_ms"]


def plot_pull_time(
    cells: pd.DataFrame, summary: pd.DataFrame, design: Design, stem: Path
) -> list[Path]:
    """Draw KV pull time by prompt length and arm: launches as points, mean and t interval.

    Writes ``<stem>.svg``, ``.png``, ``.csv``; without a proven cell the picture says so.
    """
    data = _pull_data(cells, summary)
    with mpl.rc_context(_style("whitegrid")):
        figure, axes = plt.subplots(figsize=(7.8, 4.4), layout="constrained")
        if data.empty:
            _say_nothing(axes)
        else:
            _draw_pulls(axes, data, design)
        return _save(figure, data, _note(cells, design, _PULL_NOTE), stem)


_PULL_NOTE = (
    "Small marks: launches (median of their pulls, one at a time). "
    "Large: geometric mean, {level} t interval over launches."
)


def _pull_data(cells: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Return launches and intervals as rows; nothing here is computed."""
    proven = cells[(cells["outcome"] == "proven") & cells["pull_ms"].notna()]
    launches = proven.rename(columns={"pull_ms": "value_ms"}).assign(kind="launch")
    names = {"value": "value_ms", "low": "low_ms", "high": "high_ms"}
    chosen = summary[(summary["metric"] == "pull_ms") & (summary["n_launches"] > 0)]
    means = chosen.rename(columns=names).assign(kind="interval")
    frames = [f.reindex(columns=_POINT_COLUMNS) for f in (launches, means) if len(f)]
    if not frames:
        return pd.DataFrame(columns=_POINT_COLUMNS)
    return pd.concat(frames, ignore_index=True).astype({"block": "Int64", "n_launches": "Int64"})


def _draw_pulls(axes: Axes, data: pd.DataFrame, design: Design) -> None:
    arms = [arm for arm in design.arms if arm in set(data["arm"])]
    step = 0.7 / max(len(arms), 1)
    places = {tokens: index for index, tokens in enumerate(design.prompt_tokens)}
    offsets = {arm: (i - (len(arms) - 1) / 2) * step for i, arm in enumerate(arms)}
    data = data.assign(
        x=data["prompt_tokens"].map(places) + data["arm"].map(offsets),
        label=data["arm"].map({arm: _arm_label(arm, data) for arm in arms}),
    )
    labels = [_arm_label(arm, data) for arm in arms]
    colours = sns.color_palette("colorblind", len(arms))
    launches = data[data["kind"] == "launch"]
    sns.scatterplot(
        data=launches,
        x=launches["x"] + step * 0.18,
        y="value_ms",
        hue="label",
        hue_order=labels,
        palette=colours,
        s=16,
        alpha=0.6,
        legend=False,
        ax=axes,
    )
    for index, (arm, label) in enumerate(zip(arms, labels, strict=True)):
        means = data[(data["arm"] == arm) & (data["kind"] == "interval")]
        reach = [means["value_ms"] - means["low_ms"], means["high_ms"] - means["value_ms"]]
        axes.errorbar(
            means["x"],
            means["value_ms"],
            yerr=[r.fillna(0) for r in reach],
            fmt=_MARKERS[index % len(_MARKERS)],
            color=colours[index],
            capsize=4,
            markersize=7,
            label=label,
        )
        named = means if len(arms) <= _NAMED_ARMS else means.iloc[:0]
        for x, value in zip(named["x"], named["value_ms"], strict=True):
            axes.annotate(
                number(value),
                (x, value),
                xytext=(-8, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
            )
    _dress_pulls(axes, data, design)


def _dress_pulls(axes: Axes, data: pd.DataFrame, design: Design) -> None:
    ticks = [tokens_text(t) for t in design.prompt_tokens]
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length (tokens)")
    is_log = data["value_ms"].max() > _LOG_SPREAD * data["value_ms"].min()
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"KV pull time (ms{', log scale' if is_log else ''})")
    axes.set_title("Time for one KV pull, by prompt length and arm", loc="left")
    axes.legend(title="arm", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _arm_label(arm: str, data: pd.DataFrame) -> str:
    counts = data.loc[(data["arm"] == arm) & (data["kind"] == "interval"), "n_launches"]
    least, most = int(counts.min()), int(counts.max())
    n = f"{least}" if least == most else f"{least} to {most}"
    return f"{arm}\n(n = {n} launch{'es' if most != 1 else ''})"


def plot_post_split(
    cells: pd.DataFrame, summary: pd.DataFrame, design: Design, stem: Path
) -> list[Path]:
    """Draw the longest prompt's pull split into post and after-post, a bar per arm.

    Writes ``<stem>.svg``, ``.png``, ``.csv``; without a proven cell the picture says so.
    """
    data = _split_data(summary, design)
    with mpl.rc_context(_style("white")):
        height = 1.8 + 0.55 * max(len(data), 2)
        figure, axes = plt.subplots(figsize=(7.8, height), layout="constrained")
        if data.empty:
            _say_nothing(axes)
        else:
            _draw_split(axes, data)
        return _save(figure, data, _note(cells, design, _SPLIT_NOTE), stem)


_SPLIT_NOTE = (
    "One pull at a time. Medians of the parts need not add up to the median of the whole: "
    "the whole is named after each bar."
)


def _split_data(summary: pd.DataFrame, design: Design) -> pd.DataFrame:
    chosen = summary[summary["n_launches"] > 0]
    if chosen.empty:
        return pd.DataFrame(columns=_SPLIT_COLUMNS)
    longest = chosen[chosen["prompt_tokens"] == chosen["prompt_tokens"].max()]
    wide = longest.pivot(index="arm", columns="metric", values="value")
    counts = longest[longest["metric"] == "pull_ms"].set_index("arm")["n_launches"]
    wide = wide.assign(n_launches=counts, prompt_tokens=longest["prompt_tokens"].iloc[0])
    arms = [arm for arm in design.arms if arm in wide.index]
    ordered: pd.DataFrame = wide.loc[arms].reset_index()
    return ordered.reindex(columns=_SPLIT_COLUMNS)


def _draw_split(axes: Axes, data: pd.DataFrame) -> None:
    post, after = sns.color_palette("colorblind", 2)
    names = [
        f"{arm}\n(n = {n} launches)" for arm, n in zip(data["arm"], data["n_launches"], strict=True)
    ]
    axes.barh(names, data["post_ms"], color=post, label="post")
    axes.barh(
        names,
        data["after_post_ms"],
        left=data["post_ms"],
        color=after,
        hatch="///",
        edgecolor="white",
        label="after-post",
    )
    for index, row in enumerate(data.to_dict("records")):
        text = (
            f"  post {number(row['post_ms'])} + after-post {number(row['after_post_ms'])}; "
            f"pull {value_text(row['pull_ms'], 'ms')}"
        )
        end = row["post_ms"] + row["after_post_ms"]
        axes.text(end, index, text, va="center", fontsize=9)
    tokens = tokens_text(int(data["prompt_tokens"].iloc[0]))
    axes.set_title(f"One KV pull at {tokens} tokens: post and after-post", loc="left")
    axes.set_xlabel("time (ms)")
    # Room for the values that stand behind the longest bar.
    longest = float((data["post_ms"] + data["after_post_ms"]).max())
    axes.set_xlim(0, 2.0 * longest)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1.05 * longest])
    axes.invert_yaxis()
    sns.despine(ax=axes)
    axes.figure.legend(frameon=False, loc="outside upper right", ncols=2)


def plot_rate(cells: pd.DataFrame, costs: CostTables, design: Design, stem: Path) -> list[Path]:
    """Draw the rate of the largest pull against descriptor size: points, fits, break-even.

    Writes ``<stem>.svg``, ``.png``, ``.csv``; without a proven cell the picture says so.
    """
    data = _rate_data(costs)
    with mpl.rc_context(_style("whitegrid")):
        figure, axes = plt.subplots(figsize=(7.8, 4.4), layout="constrained")
        if data.empty:
            _say_nothing(axes)
        else:
            _draw_rates(axes, data)
        return _save(figure, data, _note(cells, design, _RATE_NOTE), stem)


_RATE_NOTE = (
    "Marks: measured (geometric mean over launches, one pull at a time). Lines: the cost model, "
    "inside the measured sizes. Dotted: sizes at which two of them are equal."
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
    kept = [f[f["pull_bytes"] == largest].reindex(columns=_RATE_COLUMNS) for f in frames]
    kept = [frame for frame in kept if len(frame)]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=_RATE_COLUMNS)


def _draw_rates(axes: Axes, data: pd.DataFrame) -> None:
    measured = data[data["kind"] == "measured"]
    names = list(dict.fromkeys(measured["series"]))
    for index, (name, colour) in enumerate(
        zip(names, sns.color_palette("colorblind", len(names)), strict=True)
    ):
        own = data[data["series"] == name]
        marks, line = own[own["kind"] == "measured"], own[own["kind"] == "fit"]
        marker = _MARKERS[index % len(_MARKERS)]
        axes.plot(
            marks["descriptor_bytes"],
            marks["gb_per_s"],
            marker,
            color=colour,
            label=f"{name}\n(n = {len(marks)} points)",
        )
        axes.plot(line["descriptor_bytes"], line["gb_per_s"], color=colour)
    for size in data.loc[data["kind"] == "break-even", "descriptor_bytes"]:
        axes.axvline(size, color="0.4", linestyle=":")
        axes.annotate(
            f" {size:,.0f}",
            (size, 0.02),
            xycoords=("data", "axes fraction"),
            fontsize=8,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="x", labelrotation=30)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("bytes of a descriptor (log scale)")
    axes.set_ylabel("rate of a pull (GB/s, log scale)")
    pull = int(measured["pull_bytes"].iloc[0])
    axes.set_title(f"Rate of a pull of {pull:,} bytes, by descriptor size", loc="left")
    axes.legend(title="series", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _style(name: str) -> Any:
    return {**sns.axes_style(name), **_RC}


def _say_nothing(axes: Axes) -> None:
    axes.axis("off")
    text = "No cell has its road proven: there is no number to draw."
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def _note(cells: pd.DataFrame, design: Design, text: str) -> str:
    """Return the text under a figure; it names the arms that were refused."""
    parts = [text.format(level=percent(1 - design.alpha))]
    for arm, rows in refusals(cells).groupby("arm", sort=False):
        row = rows.iloc[0]
        seen = row["road_seen"] or "none"
        roads = f" (road expected {row['road_expected']}, seen {seen})"
        n = int(rows["n_cells"].sum())
        outcome = " or ".join(dict.fromkeys(rows["outcome"]))
        cell = "cell" if n == 1 else "cells"
        parts.append(f"No numbers from {n} {outcome} {cell} of {arm}{roads}.")
    return "\n".join(textwrap.fill(part, 120) for part in parts)


def _save(figure: Figure, data: pd.DataFrame, note: str, stem: Path) -> list[Path]:
    figure.supxlabel(note, fontsize=8, color="0.35", ha="left", x=0.01)
    svg, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    csv = stem.with_name(f"{stem.name}.csv")
    # Dates and versions in the files would make equal figures differ.
    no_svg: dict[str, Any] = {"Date": None, "Creator": None}
    write_atomic(svg, lambda path: figure.savefig(path, format="svg", metadata=no_svg))
    write_atomic(
        png,
        lambda path: figure.savefig(path, format="png", dpi=_DPI, metadata={"Software": None}),
    )
    write_atomic(csv, lambda path: data.to_csv(path, index=False, lineterminator="\n"))
    plt.close(figure)
    return [svg, png, csv]


def build(
    cells_parquet: Path | str,
    summary_parquet: Path | str,
    design_path: Path | str,
    cost_dir: Path | str,
    out_dir: Path | str,
) -> list[Path]:
    """Write ``pull_time``, ``post_split`` and ``rate`` (.svg, .png, .csv) into ``out_dir``."""
    cells, summary = pd.read_parquet(cells_parquet), pd.read_parquet(summary_parquet)
    design, out = read_design(Path(design_path)), Path(out_dir)
    plots: Sequence[tuple[str, Any]] = (
        ("pull_time", plot_pull_time),
        ("post_split", plot_post_split),
    )
    drawn = [path for name, plot in plots for path in plot(cells, summary, design, out / name)]
    return drawn + plot_rate(cells, read_tables(cost_dir), design, out / "rate")
