"""Published claims held against what a study measured: a row and a word for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypedDict

import pandas as pd

from kvroad.analysis.cost_model import PointRow, as_moved, read_tables
from kvroad.analysis.tables import (
    METRICS,
    DesignFile,
    PublishedClaim,
    margin,
    metric,
    read_design,
    write_table,
)
from kvroad.analysis.verdict.sentences import VerdictRow
from kvroad.analysis.words import interval, percent, ratio_text, rows_of, tokens_text

__all__ = ["CLAIM_COLUMNS", "WORDS", "build", "claims_frame"]

WORDS = ("holds", "does not hold", "inconclusive", "not testable here")
HOLDS, FAILS, OPEN, UNTESTABLE = WORDS


class ClaimRow(TypedDict):
    """A published claim beside what was measured, both in words."""

    claim: str
    says: str
    metric: str
    published: str
    contrast: str
    measured: str
    word: str
    why: str


class ShareRow(PointRow):
    """A point of an arm, with the prompt length that it is of."""

    prompt_tokens: int


CLAIM_COLUMNS = list(ClaimRow.__annotations__)


@dataclass(frozen=True)
class _Judgement:
    word: str
    why: str


def claims_frame(
    verdict: pd.DataFrame, cells: pd.DataFrame, points: pd.DataFrame, design: DesignFile
) -> pd.DataFrame:
    """Return a row per published claim: ``published``, ``measured``, and one of `WORDS`.

    A claim is tested only where GPU, model and engine are those of the publication: numbers
    of other hardware stand in ``measured`` and reproduce nothing. Rules, for the contrast
    that the claim names, at every prompt length measured:

    - ``ratio``: holds where the interval lies inside the published range, widened by the
      metric's margin; does not hold where one lies wholly outside.
    - ``same``: holds where the verdict is same; not where it is faster or slower.
    - ``faster``: holds where the verdict is faster; not where it is slower or same.
    - ``share_above``: the operations' share of the pull, from the cost model.
    """
    claims = design.quoted.claims if design.quoted else ()
    rows = [_row(claim, verdict, cells, points, design) for claim in claims]
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


def _row(
    claim: PublishedClaim,
    verdict: pd.DataFrame,
    cells: pd.DataFrame,
    points: pd.DataFrame,
    design: DesignFile,
) -> ClaimRow:
    rows = _contrasts(verdict, claim["metric"], claim["arm"], claim.get("baseline", ""))
    shares = _shares(points, cells, design, claim["arm"]) if "share_above" in claim else []
    near = claim.get("near")
    seen = rows or (
        _contrasts(verdict, claim["metric"], near["arm"], near["baseline"]) if near else []
    )
    judgement = _mismatch(claim, cells, design) or _judge(claim, rows, shares, design)
    return {
        "claim": claim["name"],
        "says": claim["says"],
        "metric": claim["metric"],
        "published": _published(claim, design),
        "contrast": _contrast_name(claim, seen),
        "measured": _share_texts(shares) if "share_above" in claim else _texts(seen),
        "word": judgement.word,
        "why": judgement.why,
    }


def _contrasts(verdict: pd.DataFrame, what: str, arm: str, baseline: str) -> list[VerdictRow]:
    """Return the rows of a metric with a ratio whose arms fit the patterns."""
    return [
        row
        for row in rows_of(verdict, VerdictRow)
        if row["metric"] == what
        and row["tested"] == "ratio"
        and fnmatchcase(row["arm"], arm)
        and fnmatchcase(row["baseline"], baseline)
    ]


def _shares(
    points: pd.DataFrame, cells: pd.DataFrame, design: DesignFile, arm: str
) -> list[ShareRow]:
    """Return the operations' share of an arm's pulls, a row per prompt length."""
    proven = cells[(cells["arm"] == arm) & (cells["outcome"] == "proven")]
    sizes = as_moved(proven).drop_duplicates("prompt_tokens")[
        ["prompt_tokens", "descriptors", "pull_bytes"]
    ]
    pulls = points[
        (points["measure"] == "pull_ms") & (points["series"] == design.facts_of(arm).series)
    ]
    merged = sizes.merge(pulls, on=["descriptors", "pull_bytes"]).sort_values("prompt_tokens")
    return rows_of(merged, ShareRow)


def _mismatch(claim: PublishedClaim, cells: pd.DataFrame, design: DesignFile) -> _Judgement | None:
    """Say in what the study differs from the publication's setup; None where in nothing."""
    wanted = {
        **(design.quoted.setup.get("match", {}) if design.quoted else {}),
        **(claim.get("match") or {}),
    }
    proven = cells[cells["outcome"] == "proven"]
    gpus = sorted(set(proven["gpus"].dropna())) or ["none"]
    reasons = []
    if "gpu" in wanted and not all(wanted["gpu"] in name for name in gpus):
        reasons.append(f"published for {wanted['gpu']} GPUs, this host has {' and '.join(gpus)}")
    for what, have in (("model", design.model), ("engine", design.engine)):
        allowed = wanted.get(what, [have])
        allowed = [allowed] if isinstance(allowed, str) else list(allowed)
        if have not in allowed:
            reasons.append(f"published for {what} {' or '.join(allowed)}, not {have}")
    return _Judgement(UNTESTABLE, "; ".join(reasons)) if reasons else None


def _judge(
    claim: PublishedClaim,
    rows: list[VerdictRow],
    shares: list[ShareRow],
    design: DesignFile,
) -> _Judgement:
    if "share_above" in claim:
        return _judge_share(float(claim["share_above"]), shares)
    if not rows:
        known = claim["metric"] in {m.name for m in METRICS}
        what = "proven contrast of these arms" if known else f"metric {claim['metric']}"
        return _Judgement(UNTESTABLE, f"the study has no {what}")
    if "ratio" in claim:
        return _judge_ratio(claim, rows, design)
    good, bad = (
        ("same", ("faster", "slower")) if claim.get("same") else ("faster", ("slower", "same"))
    )
    words = [str(row["verdict"]) for row in rows]
    if all(word.startswith(good) for word in words):
        return _Judgement(HOLDS, f"{good} at every prompt length measured")
    against = [r for r in rows if str(r["verdict"]).startswith(bad)]
    if against:
        return _Judgement(FAILS, f"{against[0]['verdict']} {_at(against)}")
    return _Judgement(
        OPEN, f"inconclusive {_at([r for r in rows if not str(r['verdict']).startswith(good)])}"
    )


def _judge_ratio(claim: PublishedClaim, rows: list[VerdictRow], design: DesignFile) -> _Judgement:
    share = margin(design.margins, metric(claim["metric"]))
    low, high = claim["ratio"][0] / (1 + share), claim["ratio"][1] * (1 + share)
    limits = (
        f"{ratio_text(low)} to {ratio_text(high)}, the published range widened by {percent(share)}"
    )
    outside = [r for r in rows if r["ratio_high"] < low or r["ratio_low"] > high]
    if outside:
        return _Judgement(FAILS, f"the interval lies outside {limits} {_at(outside)}")
    part = [r for r in rows if not (low <= r["ratio_low"] and r["ratio_high"] <= high)]
    if part:
        return _Judgement(OPEN, f"the interval is not wholly inside {limits} {_at(part)}")
    return _Judgement(HOLDS, f"every interval lies inside {limits}")


def _judge_share(limit: float, shares: list[ShareRow]) -> _Judgement:
    known = [s for s in shares if not math.isnan(s["operations_share"])]
    if not known:
        return _Judgement(UNTESTABLE, "the cost model tells no share of operations in this study")
    if all(s["operations_share_low"] > limit for s in known):
        return _Judgement(HOLDS, f"operations take more than {percent(limit)} of every pull")
    below = [s for s in known if s["operations_share_high"] < limit]
    if below:
        return _Judgement(FAILS, f"operations take less than {percent(limit)} {_at(below)}")
    return _Judgement(OPEN, f"the interval of the share holds {percent(limit)}")


def _at(rows: Sequence[VerdictRow | ShareRow]) -> str:
    tokens = list(dict.fromkeys(tokens_text(int(r["prompt_tokens"])) for r in rows))
    return f"at {' and '.join(tokens)} tokens"


def _published(claim: PublishedClaim, design: DesignFile) -> str:
    if "share_above" in claim:
        return f"more than {percent(float(claim['share_above']))} of the pull"
    ratios = design.quoted.ratios.get(claim["metric"], {}) if design.quoted else {}
    if "ratio" in claim and ratios:
        listed = ", ".join(f"{r:g}x at {tokens_text(t)}" for t, r in sorted(ratios.items()))
        return f"{listed} tokens"
    if "ratio" in claim:
        return f"{claim['ratio'][0]:g}x to {claim['ratio'][1]:g}x"
    if claim.get("same"):
        return "no change"
    return "faster; said to be untested" if not claim.get("is_tested", True) else "faster"


def _contrast_name(claim: PublishedClaim, rows: list[VerdictRow]) -> str:
    if "share_above" in claim:
        return str(claim["arm"])
    pairs = dict.fromkeys(f"{row['arm']} against {row['baseline']}" for row in rows)
    return ", ".join(pairs) or f"{claim['arm']} against {claim['baseline']}"


def _texts(rows: list[VerdictRow]) -> str:
    is_one_pair = len({(r["arm"], r["baseline"]) for r in rows}) == 1
    return "; ".join(
        ("" if is_one_pair else f"{r['arm']}: ")
        + f"{ratio_text(r['ratio'])} ({interval(r)}) at {tokens_text(int(r['prompt_tokens']))}"
        for r in rows
    )


def _share_texts(shares: list[ShareRow]) -> str:
    return "; ".join(
        f"{100 * s['operations_share']:.0f} % ({100 * s['operations_share_low']:.0f} to"
        f" {100 * s['operations_share_high']:.0f} %) at {tokens_text(int(s['prompt_tokens']))}"
        for s in shares
        if not math.isnan(s["operations_share"])
    )


def build(
    verdict_parquet: Path | str,
    cells_parquet: Path | str,
    cost_dir: Path | str,
    design_path: Path | str,
    out_dir: Path | str,
) -> None:
    """Write ``claims.parquet`` and ``claims.csv`` into ``out_dir``; without claims, no rows."""
    frame = claims_frame(
        pd.read_parquet(verdict_parquet),
        pd.read_parquet(cells_parquet),
        read_tables(cost_dir).points,
        read_design(Path(design_path)),
    )
    write_table(frame, Path(out_dir) / "claims")
