"""Studies held against each other: the statistics of one study, between arms of several.

Launches of different runs are no pairs: every contrast here is unpaired (Welch's t on log
ratios of launch values, Holm over a metric's comparisons) and is never called "same".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kvroad.analysis.compare.comparable import (
    arm_differs,
    in_flight_differs,
    other_host,
    shared,
    unlike,
)
from kvroad.analysis.compare.differences import Difference
from kvroad.analysis.compare.differences import differences as find_differences
from kvroad.analysis.saved_study import SavedStudy
from kvroad.analysis.stats import contrasts_frame
from kvroad.analysis.tables import (
    IN_FLIGHT,
    METRICS,
    ArmFacts,
    DesignCell,
    DesignFile,
    Metric,
    metric,
)
from kvroad.analysis.verdict import VerdictRow, records, verdict_frame
from kvroad.analysis.words import limits_of, rows_of
from kvroad.errors import UserError

__all__ = [
    "NONE_BEYOND",
    "OPEN",
    "REGRESSION",
    "Comparison",
    "Difference",
    "compare",
    "default_metrics",
]

# What the gate reads in a row: slower by more than the margin, not so, or neither shown.
REGRESSION, NONE_BEYOND, OPEN = "regression", "none beyond margin", "open"

_SERVED = ("ttft_ms", "requests_per_s")
_BLOCK_STEP = 100_000


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Parameters
    ----------
    rows
        The verdict frame with ``study``, ``reference``, ``label`` (the arm's own) and ``gate``.
    refused
        What may not be compared, a sentence each.
    differences
        What differs besides: settings, versions, environment, facts of the host.
    notes
        What holds of a study as a whole.
    lost
        Arms at prompt lengths whose road the reference proves and another study, which has
        them, does not: no launch of them carries a number there.
    """

    rows: pd.DataFrame
    refused: tuple[str, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    lost: tuple[str, ...] = ()


def default_metrics() -> list[Metric]:
    """Return pull times, and what the client of a serving engine sees."""
    return [m for m in METRICS if m.pull == m.name or m.margin_key in _SERVED]


def compare(
    studies: Sequence[SavedStudy], metrics: Sequence[str] | None = None, across_hosts: bool = False
) -> Comparison:
    """Compare each study with the first, arm by arm and prompt length by prompt length.

    Margins and error rate are those of the first study's claims.

    Raises
    ------
    UserError
        For an unknown metric, a table that cannot be read, or a study named twice.
    """
    chosen = _metrics(metrics)
    names = _names(studies)
    cells = {name: _cells(study) for name, study in zip(names, studies, strict=True)}
    reference, *others = names
    first = studies[0]
    refused: list[str] = []
    differences: list[Difference] = []
    pairs: list[tuple[str, str, str]] = []
    notes = list(_notes(cells, reference))
    for name, study in zip(others, studies[1:], strict=True):
        reasons = [*unlike(first, study), *([] if across_hosts else other_host(first, study))]
        if reasons:
            refused += [f"{name} against {reference}: {reason}" for reason in reasons]
            continue
        differences += find_differences(name, first, study, cells[reference], cells[name])
        if reason := in_flight_differs(first, study):
            refused.append(f"{name} against {reference}, pulls in flight: {reason}")
            _drop_in_flight(cells[name])
        both, lost, added = shared(cells[reference], cells[name])
        refused += [f"{name} against {reference}: no {what} in it" for what in lost]
        notes += [f"{name} has {what}, {reference} has not" for what in added]
        for arm in both:
            if why := arm_differs(arm, cells[reference], cells[name], first, study):
                refused.append(f"{name} against {reference}, arm {arm}: {why}")
            else:
                pairs.append((arm, name, reference))
    rows = _contrasts(cells, pairs, first)
    rows = rows[rows["metric"].isin([m.name for m in chosen])] if len(rows) else rows
    refused += _withheld(rows)
    rows = rows[rows["tested"] != "none"].reset_index(drop=True) if len(rows) else rows
    lost = [text for pair in pairs for text in _lost_roads(cells, *pair)]
    return Comparison(rows, tuple(refused), tuple(differences), tuple(notes), tuple(lost))


def _metrics(names: Sequence[str] | None) -> list[Metric]:
    if names is None:
        return default_metrics()
    return [metric(name) for name in names]


def _names(studies: Sequence[SavedStudy]) -> list[str]:
    """Return a name per study: its own, or its folder where two have one name."""
    if len(studies) < 2:
        raise UserError("name two studies or more; the first is what the others are held against")
    folders = [study.folder.resolve() for study in studies]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"{folder} is named twice; a study is not compared with itself")
    plain = [study.name for study in studies]
    return [
        name if plain.count(name) == 1 else str(study.folder) for name, study in zip(plain, studies)
    ]


def _cells(study: SavedStudy) -> pd.DataFrame:
    """Read the cells; a metric that an older table does not have is empty."""
    cells = study.table("cells")
    needed = ("cell", "arm", "prompt_tokens", "block", "outcome", "run_id", "descriptors")
    for name in needed:
        if name not in cells:
            raise UserError(f"{study.folder / 'cells.csv'}: column {name} is missing")
    for each in METRICS:
        if each.name not in cells:
            cells[each.name] = np.nan
    return cells


def _drop_in_flight(cells: pd.DataFrame) -> None:
    for each in METRICS:
        if each.phase == IN_FLIGHT:
            cells[each.name] = np.nan


def _contrasts(
    cells: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str, str]], first: SavedStudy
) -> pd.DataFrame:
    """Return the verdict frame of all pairs, from one frame of all studies' cells."""
    if not pairs:
        return pd.DataFrame()
    parts = []
    for number, (name, frame) in enumerate(cells.items()):
        # No block is shared, so that nothing is ever taken for a pair.
        parts.append(
            frame.assign(
                label=frame["arm"],
                arm=[f"{arm} in {name}" for arm in frame["arm"]],
                cell=[f"{number}/{cell}" for cell in frame["cell"]],
                block=frame["block"] + number * _BLOCK_STEP,
            )
        )
    together = pd.concat(parts, ignore_index=True)
    claims = first.settings.get("claims") or {}
    declares = frozenset({"engine.nixl_version", *_environment_keys(together)})
    design = DesignFile(
        study="comparison",
        study_name="comparison",
        baseline=f"{pairs[0][0]} in {pairs[0][2]}",
        contrasts=tuple((f"{arm} in {name}", f"{arm} in {base}") for arm, name, base in pairs),
        cells=tuple(_planned(row) for row in records(together)),
        alpha=float(claims.get("alpha", 0.05)),
        margins={str(k): float(v) for k, v in (claims.get("margins") or {}).items()},
        arm_facts={arm: ArmFacts(declares) for arm in together["arm"].unique()},
    )
    rows = verdict_frame(contrasts_frame(together, design), together, design)
    for place, column in enumerate(("label", "study", "reference")):
        by_arm = {f"{pair[0]} in {pair[1]}": pair[place] for pair in pairs}
        rows[column] = rows["arm"].map(by_arm)
    rows["gate"] = [_gate(row, design.alpha) for row in rows_of(rows, VerdictRow)]
    for column in ("note", "outliers", "sentence"):
        rows[column] = rows[column].astype(str).map(_own_blocks)
    return rows[rows.apply(_is_planned, axis=1, args=(cells,))]


def _own_blocks(text: str) -> str:
    """Give blocks their number in their own study again."""
    return re.sub(r"block (\d{6,})", lambda m: f"block {int(m[1]) % _BLOCK_STEP}", text)


def _is_planned(row: pd.Series[Any], cells: Mapping[str, pd.DataFrame]) -> bool:
    """Return whether both studies have the arm at this prompt length, and the metric at all."""
    sides = []
    for name in (row["study"], row["reference"]):
        frame = cells[name]
        at = (frame["arm"] == row["label"]) & (frame["prompt_tokens"] == row["prompt_tokens"])
        sides.append(bool(at.any()) and bool(frame[row["metric"]].notna().any()))
    return all(sides)


def _planned(row: Mapping[str, Any]) -> DesignCell:
    texts = {name: str(row.get(name, "")) for name in ("cell", "arm", "transport", "variant")}
    return DesignCell(
        launch=str(row.get("launch", row["cell"])),
        prompt_tokens=int(row["prompt_tokens"]),
        block=int(row["block"]),
        **texts,
    )


def _environment_keys(cells: pd.DataFrame) -> set[str]:
    texts = list(cells["environment"].unique()) if "environment" in cells else []
    return {f"env.{name}" for text in texts if text for name in json.loads(text)}


def _gate(row: VerdictRow, alpha: float) -> str:
    """Return whether a row shows a regression beyond the margin, rules one out, or neither.

    A regression: the whole interval is worse than the margin allows, and Holm's p is below
    ``alpha``. None: the whole interval is better than that.
    """
    low, high = limits_of(row)
    if row["tested"] == "none" or math.isnan(low) or math.isnan(row["same_high"]):
        return OPEN
    if metric(row["metric"]).is_higher_better:
        is_worse, is_not = high < row["same_low"], low >= row["same_low"]
    else:
        is_worse, is_not = low > row["same_high"], high <= row["same_high"]
    if is_worse and row["p_holm"] < alpha:
        return REGRESSION
    return NONE_BEYOND if is_not else OPEN


def _withheld(rows: pd.DataFrame) -> Iterator[str]:
    """Say of what was to be compared that it could not be."""
    if not len(rows):
        return
    lost = rows[rows["tested"] == "none"]
    for row in records(lost.drop_duplicates(["arm", "baseline", "prompt_tokens"])):
        pair = f"{row['study']} against {row['reference']}, arm {row['label']}"
        where = f"{pair}, {row['prompt_tokens']:,} tokens"
        yield f"{where}: {row['withheld'] or row['note'] or 'no launch carries this metric'}"


def _lost_roads(
    cells: Mapping[str, pd.DataFrame], arm: str, name: str, reference: str
) -> Iterator[str]:
    """Name prompt lengths at which the reference has proven launches and the other has none."""
    launches, base = (cells[study][cells[study]["arm"] == arm] for study in (name, reference))
    proven = {int(t) for t in base.loc[base["outcome"] == "proven", "prompt_tokens"]}
    for tokens in sorted(proven & {int(t) for t in launches["prompt_tokens"]}):
        outcomes = launches.loc[launches["prompt_tokens"] == tokens, "outcome"]
        if not (outcomes == "proven").any():
            seen = ", ".join(sorted(set(outcomes.astype(str))))
            yield f"{arm} at {tokens:,} in {name} ({seen})"


def _notes(cells: Mapping[str, pd.DataFrame], reference: str) -> Iterator[str]:
    for name, frame in cells.items():
        n, proven = len(frame), int((frame["outcome"] == "proven").sum())
        if proven < n:
            what = "the reference" if name == reference else name
            yield f"{what}: {n - proven} of {n} cells are not proven and carry no number"
