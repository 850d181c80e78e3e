"""Contrasts to verdict words, and the launches that would settle what is open."""

from __future__ import annotations

import math

import pandas as pd
from scipy.special import ndtri

from kvroad.analysis.stats import ContrastRow
from kvroad.analysis.tables import DesignFile, metric
from kvroad.analysis.verdict.sentences import VerdictRow, sentence
from kvroad.analysis.words import limits_of, rows_of

__all__ = ["VERDICT_COLUMNS", "launches_needed", "refusals", "verdict_frame"]

VERDICT_COLUMNS = ("verdict", "launches_needed", "sentence")


def verdict_frame(contrasts: pd.DataFrame, cells: pd.DataFrame, design: DesignFile) -> pd.DataFrame:
    """Return the contrasts with a word, the launches needed, and a sentence each.

    - ``same within m %``: the interval of the ratio lies inside [1/(1+m), 1+m] and the arms
      were interleaved. It wins over faster and slower: a difference inside the margin is one
      that the study declared not to matter. After-post times compared as a difference: the
      interval lies inside plus or minus m of the baseline's pull time.
    - ``faster``, ``slower``: p after Holm is below alpha and the interval leaves out 1 (0 for a
      difference). Less time, or more GB/s, is faster.
    - ``withheld``: the arms differ in what neither declares, so nothing is compared.
    - ``refused``: no data at this prompt length, and a cell of either arm was refused.
    - ``not measured``: no data otherwise. ``inconclusive``: everything else.

    Others build on this name and on the columns, those of verdict.csv: `CONTRAST_COLUMNS`, then
    `VERDICT_COLUMNS`. A column may be added behind them, none goes or changes what it means.
    """
    refused = set(cells.loc[cells["outcome"] == "refused", "arm"])
    rows = []
    for row in rows_of(contrasts, ContrastRow):
        word = _word(row, refused, design.alpha)
        needed = launches_needed(row, design.alpha) if word == "inconclusive" else None
        judged: VerdictRow = {**row, "verdict": word, "launches_needed": needed, "sentence": ""}
        rows.append({**judged, "sentence": sentence(judged, cells, design.alpha)})
    frame = pd.DataFrame(rows, columns=[*contrasts.columns, *VERDICT_COLUMNS])
    return frame.astype({"launches_needed": "Int64"})


def _word(row: ContrastRow, refused_arms: set[str], alpha: float) -> str:
    if row["withheld"]:
        return "withheld"
    if row["tested"] == "none":
        is_refused = bool({row["arm"], row["baseline"]} & refused_arms)
        return "refused" if is_refused else "not measured"
    low, high = limits_of(row)
    if math.isnan(low):
        return "inconclusive"
    if row["is_interleaved"] and row["same_low"] <= low and high <= row["same_high"]:
        return f"same within {100 * row['margin']:g} %"
    found, nothing = (row["ratio"], 1) if row["tested"] == "ratio" else (row["difference"], 0)
    if row["p_holm"] < alpha and not low <= nothing <= high:
        is_more = found > nothing
        return "faster" if is_more == metric(row["metric"]).is_higher_better else "slower"
    return "inconclusive"


def launches_needed(row: ContrastRow, alpha: float) -> int | None:
    """Return the even number of launches that would settle a row if its estimate stays.

    Normal approximation on the tested scale (log ratio, or difference), with the estimate d,
    the (pooled) sd s and the margin's bound L: half width z(1 - alpha/2) s / sqrt(n) inside
    L - |d| would show "same"; z(1 - alpha/2k) s / sqrt(n) below |d| would show a difference,
    k comparisons being Holm's worst case. The smaller n counts, at least two more than now.
    None where no spread is known.
    """
    if not row["sd"] > 0:
        return None
    is_ratio = row["tested"] == "ratio"
    effect = abs(math.log(row["ratio"])) if is_ratio else abs(row["difference"])
    bound = math.log(row["same_high"]) if is_ratio else row["same_high"]
    room = bound - effect if row["is_interleaved"] else 0.0
    family = max(int(row["n_comparisons"]), 1)
    widths = [(room, ndtri(1 - alpha / 2)), (effect, ndtri(1 - alpha / (2 * family)))]
    sizes: list[float] = [(z * row["sd"] / width) ** 2 for width, z in widths if width > 0]
    if not sizes:
        return None
    now = int(min(row["n_arm"], row["n_baseline"]))
    return max(2 * math.ceil(min(sizes) / 2), 2 * math.floor(now / 2) + 2)


def refusals(cells: pd.DataFrame) -> pd.DataFrame:
    """Return refused and failed cells counted by arm and reason.

    Columns: arm, outcome, reason, road_expected, road_seen, where, quote, prompt_tokens (list),
    n_cells.
    """
    names = ["arm", "outcome", "reason", "road_expected", "road_seen", "where", "quote"]
    bad = cells[cells["outcome"].isin(["refused", "failed"])].copy()
    bad[names] = bad[names].fillna("")
    # A cell that repeats another's refusal names that cell behind the reason.
    bad["reason"] = bad["reason"].str.split(" (as in ", n=1, regex=False).str[0]
    grouped = bad.groupby(["arm", "outcome", "reason", "road_expected", "road_seen"], sort=False)
    found = grouped.agg(
        where=("where", "first"),
        quote=("quote", "first"),
        prompt_tokens=("prompt_tokens", lambda tokens: sorted(set(tokens))),
        n_cells=("cell", "count"),
    )
    return found.reset_index()
