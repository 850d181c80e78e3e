"""What the planned launches could show, from a spread that was seen before."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvroad.analysis.saved_study import SavedStudy, find_study
from kvroad.analysis.stats.power import chance_of_same, plan_power, spread_of_contrasts
from kvroad.analysis.tables import METRICS, margin
from kvroad.analysis.words import records
from kvroad.errors import UserError
from kvroad.study.arms import lengths_of
from kvroad.study.design import contrast_pairs
from kvroad.study.fields import Study
from kvroad.study.name import PUBLISHED, study_slug

__all__ = ["Power", "PowerRow", "power_of"]

# A chance of four in five is what power analyses ask for by convention (Cohen 1988).
_ENOUGH = 0.8
_MOST_LAUNCHES = 64


@dataclass(frozen=True)
class PowerRow:
    """A row of `plan_power` with None for what is not finite, as JSON has no such number.

    ``launches_for_same`` is the even number of launches that show "same" four times in five;
    None where that takes more than 64.
    """

    metric: str
    launches: int
    sd: float
    interval_low: float | None
    interval_high: float | None
    margin: float | None
    chance_of_same: float
    ratio: float
    chance_of_difference: float
    launches_for_same: int | None


@dataclass(frozen=True)
class Power:
    """A row per metric, and the folder that the spread is from; no rows where unknown."""

    spread_from: str
    rows: list[PowerRow]


def power_of(study: Study, reports: Path, results: Path, spread_from: str | None) -> Power:
    """Return what the launches of a study would show.

    The spread is that of the study's own contrasts, or of the study ``spread_from`` names.

    Raises
    ------
    UserError
        When ``spread_from`` names no study, or one without a spread.
    """
    source = _source(study, reports, results, spread_from)
    if source is None:
        return Power("", [])
    known = {m.name: place for place, m in enumerate(METRICS)}
    seen = spread_of_contrasts(source.table(_contrasts_of(source)))
    spreads = {
        name: seen[name] for name in sorted(seen.keys() & known.keys(), key=known.__getitem__)
    }
    if not spreads:
        if spread_from is not None:
            raise UserError(f"study {spread_from}: no contrast of two launches or more")
        return Power("", [])
    n_prompts, alpha = len(study.prompt_tokens), study.claims.alpha
    frame = plan_power(
        spreads,
        {m.name: margin(study.claims.margins, m) for m in METRICS},
        launches=study.launches,
        alpha=alpha,
        n_prompts=n_prompts,
        n_comparisons=max(_n_comparisons(study), 1),
    )
    rows = [
        PowerRow(
            **{name: _finite(value) for name, value in row.items()},
            launches_for_same=_launches_for_same(row["sd"], row["margin"], alpha, n_prompts),
        )
        for row in records(frame)
    ]
    return Power(str(source.folder), rows)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _n_comparisons(study: Study) -> int:
    """Return how many comparisons of a metric Holm's correction is over."""
    return sum(
        len({*lengths_of(study, arm)} & {*lengths_of(study, baseline)})
        for arm, baseline in contrast_pairs(study)
    )


def _source(
    study: Study, reports: Path, results: Path, spread_from: str | None
) -> SavedStudy | None:
    if spread_from is not None:
        source = find_study(spread_from, reports, results)
        if _contrasts_of(source):
            return source
        raise UserError(f"{source.folder}: neither contrasts.csv nor verdict.csv is there")
    for name in (study_slug(study), study.name):
        for folder in (results / "studies" / name, reports / name, reports / PUBLISHED / name):
            source = SavedStudy(name, folder)
            if _contrasts_of(source):
                return source
    return None


def _contrasts_of(source: SavedStudy) -> str:
    return next((name for name in ("contrasts", "verdict") if source.has(name)), "")


def _launches_for_same(sd: float, margin: float, alpha: float, n_prompts: int) -> int | None:
    """Return the even number of launches that show "same" four times in five; None: too many."""
    numbers = range(2, _MOST_LAUNCHES + 1, 2)
    # More launches never lower the chance.
    place = bisect.bisect_left(
        numbers, _ENOUGH, key=lambda n: chance_of_same(sd, n, margin, alpha, n_prompts)
    )
    return numbers[place] if place < len(numbers) else None
