"""Time of a pull by prompt length and arm, and what it is made of."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from kvroad.analysis.tables import DesignFile, metric, statistic_of
from kvroad.analysis.verdict import number, percent, records, tokens_text, value_text
from kvroad.publish.figures.picture import (
    NOTHING_PROVEN,
    Picture,
    Tables,
    colour_of,
    legend_above,
    legend_beside,
    log_ticks,
    marker_of,
    notes,
    stacked,
    write_beside,
)
from kvroad.publish.palette import PAPER

__all__ = ["pulls_picture", "split_picture"]

# Above this spread a linear axis would press the fast arm's values into one line.
_LOG_SPREAD = 8.0
# An interval may leave the launches' range by this factor before the axis cuts it.
_ROOM = 4.0
# With more arms than this, values written beside their marks cover other marks.
_NAMED_ARMS = 3
_POINT_COLUMNS = [
    *("arm", "prompt_tokens", "kind", "block", "n_launches"),
    *("value_ms", "low_ms", "high_ms"),
]
_SPLIT_COLUMNS = ["arm", "prompt_tokens", "n_launches", "post_ms", "after_post_ms", "pull_ms"]


def pulls_picture(tables: Tables) -> Picture:
    """Draw KV pull time by prompt length and arm: launches as points, mean and t interval."""
    data = _pull_data(tables.cells, tables.summary)
    level = percent(1 - tables.design.alpha)
    is_log = _is_log(data)
    note = (
        f"Small marks: launches ({_statistic(tables)} of their pulls, one at a time). Large: "
        "geometric mean, "
        f"{level} t interval over launches; one that leaves the axis is whole in the data."
    )
    pulls = tables.verdict[tables.verdict["metric"] == "pull_ms"]
    return Picture(
        name="pull_time",
        title="Time for one KV pull of one rank, by prompt length and arm",
        caption=(
            "Time for one KV pull of one tensor-parallel rank. The pull's time is xfer: from"
            " issuing the pull to its completion, the post included."
            + (" The axis is logarithmic." if is_log else "")
        ),
        alt=" ".join(pulls["sentence"]) or _values_text(data),
        note=notes(tables.cells, note),
        left_out=NOTHING_PROVEN if data.empty else "",
        data=data,
        draw=lambda axes, points: _draw_pulls(axes, points, tables.design, is_log=is_log),
    )


def _statistic(tables: Tables) -> str:
    return statistic_of(metric("pull_ms"), is_served="n_requests" in tables.cells)


def _values_text(data: pd.DataFrame) -> str:
    means = data[data["kind"] == "interval"] if len(data) else data
    texts = [
        f"{row['arm']} at {tokens_text(row['prompt_tokens'])} tokens: {number(row['value_ms'])} ms."
        for row in records(means)
    ]
    return " ".join(texts)


def _pull_data(cells: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Return launches and intervals as rows; nothing here is computed."""
    proven = cells[(cells["outcome"] == "proven") & cells["pull_ms"].notna()]
    launches = proven.rename(columns={"pull_ms": "value_ms"}).assign(kind="launch")
    names = {"value": "value_ms", "low": "low_ms", "high": "high_ms"}
    chosen = summary[(summary["metric"] == "pull_ms") & (summary["n_launches"] > 0)]
    means = chosen.rename(columns=names).assign(kind="interval")
    both = stacked([launches, means], _POINT_COLUMNS)
    return both.astype({"block": "Int64", "n_launches": "Int64"})


def _is_log(data: pd.DataFrame) -> bool:
    values = data["value_ms"]
    return len(data) > 0 and bool(values.max() > _LOG_SPREAD * values.min())


def _draw_pulls(axes: Axes, data: pd.DataFrame, design: DesignFile, *, is_log: bool) -> None:
    arms = [arm for arm in design.shown_arms if arm in set(data["arm"])]
    step = 0.7 / len(arms)
    places = {tokens: index for index, tokens in enumerate(design.prompt_tokens)}
    for index, arm in enumerate(arms):
        rows = data[data["arm"] == arm]
        x = rows["prompt_tokens"].map(places) + (index - (len(arms) - 1) / 2) * step
        colour = colour_of(design.shown_arms.index(arm))
        dots = rows["kind"] == "launch"
        axes.scatter(
            x[dots] + step * 0.18, rows.loc[dots, "value_ms"], s=14, color=[colour], alpha=0.6
        )
        means = rows[~dots]
        reach = [means["value_ms"] - means["low_ms"], means["high_ms"] - means["value_ms"]]
        axes.errorbar(
            x[~dots],
            means["value_ms"],
            yerr=[r.fillna(0) for r in reach],
            fmt=marker_of(index),
            color=colour,
            capsize=4,
            markersize=7,
            label=_arm_label(arm, means),
        )
        if len(arms) <= _NAMED_ARMS:
            for place, value in zip(x[~dots], means["value_ms"], strict=True):
                write_beside(axes, number(value), (place, value), -8, fontsize=8)
    _set_pull_axes(axes, data, design, is_log=is_log)


def _set_pull_axes(axes: Axes, data: pd.DataFrame, design: DesignFile, *, is_log: bool) -> None:
    ticks = [tokens_text(t) for t in design.prompt_tokens]
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length (tokens)")
    low, high = data["value_ms"].min(), data["value_ms"].max()
    reach = data["high_ms"].max()
    top = min(reach if pd.notna(reach) else high, _ROOM * high)
    if is_log:
        bottom = data["low_ms"].min()
        axes.set_yscale("log")
        axes.set_ylim(0.8 * max(bottom if pd.notna(bottom) else low, low / _ROOM), 1.25 * top)
        log_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, 1.08 * max(top, high))
    axes.set_ylabel(f"KV pull time (ms{', log scale' if is_log else ''})")
    legend_beside(axes, "arm")


def _arm_label(arm: str, means: pd.DataFrame) -> str:
    least, most = int(means["n_launches"].min()), int(means["n_launches"].max())
    n = f"{least}" if least == most else f"{least} to {most}"
    return f"{arm}\n(n = {n} launch{'es' if most != 1 else ''})"


def split_picture(tables: Tables) -> Picture:
    """Draw the longest prompt's pull split into post and after-post, a bar per arm."""
    data = _split_data(tables.summary, tables.design)
    tokens = tokens_text(int(data["prompt_tokens"].iloc[0])) if len(data) else "no"
    note = (
        f"One pull at a time, {_statistic(tables)} of a launch, geometric mean over launches. The "
        "parts need not add up to the whole, which is named after each bar."
    )
    return Picture(
        name="post_split",
        title=f"One KV pull at {tokens} tokens: post and after-post",
        caption=(
            "The longest prompt's pull, split into post (the call that issues it; on a synchronous"
            " road the bytes move inside it) and after-post (xfer minus post: what is left once"
            " the call has returned)."
        ),
        alt=" ".join(f"{arm}: {text}." for arm, text in _split_texts(data).items()),
        note=notes(tables.cells, note),
        left_out=NOTHING_PROVEN if data.empty else "",
        height=1.8 + 0.55 * max(len(data), 2),
        style="white",
        data=data,
        draw=_draw_split,
    )


def _split_texts(data: pd.DataFrame) -> dict[str, str]:
    """Return per arm what its pull is made of, in words."""
    return {
        row["arm"]: f"post {number(row['post_ms'])} + after-post {number(row['after_post_ms'])}; "
        f"pull {value_text(row['pull_ms'], 'ms')}"
        for row in records(data)
    }


def _split_data(summary: pd.DataFrame, design: DesignFile) -> pd.DataFrame:
    chosen = summary[(summary["n_launches"] > 0) & summary["metric"].isin(_SPLIT_COLUMNS)]
    if chosen.empty:
        return pd.DataFrame(columns=_SPLIT_COLUMNS)
    longest = chosen[chosen["prompt_tokens"] == chosen["prompt_tokens"].max()]
    wide = longest.pivot(index="arm", columns="metric", values="value")
    counts = longest[longest["metric"] == "pull_ms"].set_index("arm")["n_launches"]
    wide = wide.assign(n_launches=counts, prompt_tokens=longest["prompt_tokens"].iloc[0])
    arms = [arm for arm in design.shown_arms if arm in wide.index]
    ordered: pd.DataFrame = wide.loc[arms].reset_index()
    return ordered.reindex(columns=_SPLIT_COLUMNS)


def _draw_split(axes: Axes, data: pd.DataFrame) -> None:
    names = [
        f"{arm}\n(n = {n} launches)" for arm, n in zip(data["arm"], data["n_launches"], strict=True)
    ]
    axes.barh(names, data["post_ms"], color=colour_of(0), label="post")
    axes.barh(
        names,
        data["after_post_ms"],
        left=data["post_ms"],
        color=colour_of(1),
        hatch="///",
        edgecolor=PAPER,
        label="after-post",
    )
    ends = data["post_ms"] + data["after_post_ms"]
    for place, (end, text) in enumerate(zip(ends, _split_texts(data).values(), strict=True)):
        write_beside(axes, text, (end, place), 6, fontsize=9)
    axes.set_xlabel("time (ms)")
    # Room for the values that stand behind the longest bar.
    longest = float(ends.max())
    axes.set_xlim(0, 2.0 * longest)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1.05 * longest])
    axes.invert_yaxis()
    sns.despine(ax=axes)
    legend_above(axes, 2)
