"""What proved each arm's road, and on what: rows for the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kvroad.analysis.tables import DesignFile, FactValue

__all__ = ["FactRow", "RoadRow", "WitnessRow", "provenance_rows", "road_rows"]

# More distinct values than this are shown as their number.
_MANY = 4
_COUNT = re.compile(r"\b\d{4,}(?= (?:bytes|packets|counted|descriptors))")
_ORDER = ("contradicts", "agrees", "unavailable")


@dataclass(frozen=True)
class FactRow:
    """A fact with its distinct values as texts; of many, some and the number of the others."""

    name: str
    texts: list[str]


@dataclass(frozen=True)
class WitnessRow:
    """What a witness says of an arm: ``cells``, as in "3 of 4", of those that have it say so.

    ``expected``, ``seen`` and ``where`` are of the first of these cells.
    """

    name: str
    status: str
    cells: str
    expected: str
    seen: str
    where: str


@dataclass(frozen=True)
class RoadRow:
    """An arm's proven and planned cells, and the roads expected and seen in them."""

    arm: str
    proven: int
    planned: int
    ucx_tls: str
    expected: str
    seen: str
    witnesses: list[WitnessRow]


def road_rows(cells: pd.DataFrame, witnesses: pd.DataFrame, design: DesignFile) -> list[RoadRow]:
    """Return a row per arm, in the order of the study."""
    return [
        _road_row(arm, cells[cells["arm"] == arm], witnesses[witnesses["arm"] == arm])
        for arm in design.shown_arms
    ]


def _road_row(arm: str, cells: pd.DataFrame, witnesses: pd.DataFrame) -> RoadRow:
    return RoadRow(
        arm=arm,
        proven=int((cells["outcome"] == "proven").sum()),
        planned=len(cells),
        ucx_tls=_distinct(cells["ucx_tls"]),
        expected=_distinct(cells["road_expected"]),
        seen=_distinct(cells["road_seen"]),
        witnesses=_witness_rows(witnesses),
    )


def _distinct(texts: pd.Series[str]) -> str:
    return "; ".join(dict.fromkeys(texts.dropna())) or "none"


def _witness_rows(witnesses: pd.DataFrame) -> list[WitnessRow]:
    rows = []
    for name, group in witnesses.groupby("name", sort=False):
        for status in _ORDER:
            same = group[group["status"] == status].fillna("")
            if same.empty:
                continue
            first = same.iloc[0]
            rows.append(
                WitnessRow(
                    name=str(name).replace("_", " "),
                    status=status,
                    cells=f"{len(same)} of {len(group)}",
                    expected=_grouped(str(first["expected"])),
                    seen=_grouped(str(first["seen"])),
                    where=str(first["where"]),
                )
            )
    return rows


def _grouped(text: str) -> str:
    """Return a text with the digits of its counts in groups of three."""
    return _COUNT.sub(lambda digits: f"{int(digits.group()):,}", text)


def provenance_rows(facts: Mapping[str, Sequence[FactValue]]) -> list[FactRow]:
    """Return each fact with its distinct values."""
    rows = []
    for name, values in facts.items():
        texts = [f"{v['value']} ({v['cells']})" for v in values]
        if len(texts) > _MANY:
            texts = [*texts[:_MANY], f"and {len(texts) - _MANY} other values"]
        rows.append(FactRow(name, texts))
    return rows
