"""What serving engines add to a verdict: extra time to first token, and what was not checked."""

from __future__ import annotations

from typing import TypedDict

import pandas as pd

from kvroad.analysis.tables import CACHE_CHECKS, NOT_CHECKED, DesignFile
from kvroad.analysis.verdict.sentences import because
from kvroad.analysis.words import limits, percent, rows_of, tokens_text, value_text
from kvroad.study.serving import AGGREGATED

__all__ = [
    "ExtraRow",
    "alone_arms",
    "alone_of",
    "cache_note",
    "extra_answer",
    "extra_ttft",
    "served_notes",
]

EXTRA = "extra_ttft_ms"
# Mean bytes and descriptors differ from whole ones by more than this where they differ at all.
_WHOLE = 0.5


class ExtraRow(TypedDict):
    """What pulling over an arm adds to the time to first token; NaN: there is no interval."""

    arm: str
    against: str
    prompt_tokens: int
    n_launches: int
    value_ms: float
    low_ms: float
    high_ms: float


def alone_arms(design: DesignFile) -> list[str]:
    """Return the arms of one engine that serves alone."""
    return [arm for arm in design.shown_arms if _transport(arm, design) == AGGREGATED]


def alone_of(arm: str, design: DesignFile) -> str | None:
    """Return the arm that an arm's extra time to first token is measured against, if any."""
    variants = {cell.arm: cell.variant for cell in design.cells}
    same = [name for name in alone_arms(design) if variants[name] == variants.get(arm)]
    return same[0] if same and arm not in alone_arms(design) else None


def _transport(arm: str, design: DesignFile) -> str:
    return next((cell.transport for cell in design.cells if cell.arm == arm), "")


def extra_ttft(summary: pd.DataFrame, design: DesignFile) -> list[ExtraRow]:
    """Return what pulling adds to the time to first token, a row per arm and prompt length.

    Each is the mean, with its t interval, over the blocks that have both launches: the arm's
    and that of the engine that serves alone.

    Parameters
    ----------
    summary
        What `kvroad.analysis.stats.launch_summary` returns.
    """
    known = summary[(summary["metric"] == EXTRA) & (summary["n_launches"] > 0)]
    names = {"value": "value_ms", "low": "low_ms", "high": "high_ms"}
    kept = ["arm", "prompt_tokens", "n_launches", *names.values()]
    rows = known.rename(columns=names)[kept]
    rows["against"] = [alone_of(str(arm), design) for arm in rows["arm"]]
    order = {arm: place for place, arm in enumerate(design.shown_arms)}
    return sorted(
        rows_of(rows[rows["against"].notna()], ExtraRow),
        key=lambda row: (order[row["arm"]], row["prompt_tokens"]),
    )


def extra_answer(arm: str, rows: list[ExtraRow], cells: pd.DataFrame, design: DesignFile) -> str:
    """Say in a sentence what pulling over an arm adds to the time to first token.

    ``rows`` are those of `extra_ttft`.
    """
    against = alone_of(arm, design)
    of_arm = [row for row in rows if row["arm"] == arm]
    if not of_arm:
        missing = [name for name in (arm, against) if name and not _is_proven(name, cells)]
        why = " ".join(because(name, cells) for name in missing)
        return (
            f"No extra time to first token for {arm} against {against}: "
            f"{why or 'no block has a launch of both with the same prompts.'}"
        )
    parts = [
        f"{value_text(row['value_ms'], 'ms')} at {tokens_text(row['prompt_tokens'])} tokens "
        f"({limits(row['low_ms'], row['high_ms'], 'ms')})"
        for row in of_arm
    ]
    return (
        f"Pulling the cache over {arm} adds to the time to first token, against one engine that "
        f"serves alone ({against}): {', '.join(parts)} ({percent(1 - design.alpha)} intervals)."
    )


def _is_proven(arm: str, cells: pd.DataFrame) -> bool:
    return bool(((cells["arm"] == arm) & (cells["outcome"] == "proven")).any())


def cache_note(cells: pd.DataFrame) -> str:
    """Say whether decode's cache was held against prefill's; empty where nothing is served."""
    if "cache_check" not in cells:
        return ""
    checks = cells["cache_check"].dropna()
    counts = {word: int((checks == word).sum()) for word in CACHE_CHECKS}
    if counts[NOT_CHECKED] == len(checks):
        return (
            "Cache correctness: not checked. Whether the blocks that decode pulled equal those of"
            " prefill was not compared; equal or unequal answers would not tell."
        )
    listed = ", ".join(f"{word} in {n}" for word, n in counts.items() if n)
    return (
        "Cache correctness: the blocks that decode pulled for one probe per launch were compared"
        f" with those of prefill; {listed} of {len(checks)} cells."
    )


def served_notes(cells: pd.DataFrame) -> list[str]:
    """Return a note per arm and prompt length whose pulls were not what the layout foresees.

    NIXL merges neighbouring descriptors, so that their number tells the state of the block
    pool too; another number of bytes means that the layout is not the one in use.
    """
    if "descriptors_moved" not in cells:
        return []
    proven = cells[cells["outcome"] == "proven"]
    notes = []
    for (arm, _), group in proven.groupby(["arm", "prompt_tokens"], sort=False):
        tokens = tokens_text(int(group["prompt_tokens"].iloc[0]))
        for suffix, phase in (("", ""), ("_in_flight", " with several in flight")):
            if note := _moved_note(group, suffix):
                notes.append(f"{arm}, at {tokens} tokens{phase}: {note}.")
    return notes


def _moved_note(group: pd.DataFrame, suffix: str) -> str:
    known = group[group[f"descriptors_moved{suffix}"].notna()]
    if known.empty:
        return ""
    planned, size = float(known["descriptors"].iloc[0]), float(known["pull_bytes"].iloc[0])
    moved, n_bytes = known[f"descriptors_moved{suffix}"], known[f"bytes_moved{suffix}"]
    texts = []
    if ((n_bytes - size).abs() > _WHOLE).any():
        texts.append(f"a pull moved {n_bytes.mean():,.0f} bytes, the layout has {size:,.0f}")
    if ((moved - planned).abs() > _WHOLE).any():
        span = f"{moved.min():,.1f}"
        if moved.max() - moved.min() > 0.05:
            span = f"{span} to {moved.max():,.1f}"
        why = ", since NIXL merges neighbours" if (moved < planned).all() else ""
        texts.append(f"a pull had {span} descriptors, the layout has {planned:,.0f}{why}")
    return "; ".join(texts)
