"""What proved each arm's road, and on what: rows for the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kvroad.analysis.tables import DesignFile

__all__ = ["provenance_rows", "road_rows"]

# More distinct values than this are shown as their number.
_MANY = 4
_COUNT = re.compile(r"\b\d{4,}(?= (?:bytes|packets|counted|descriptors))")
_ORDER = ("contradicts", "agrees", "unavailable")


def road_rows(
    cells: pd.DataFrame, witnesses: pd.DataFrame, design: DesignFile
) -> list[dict[str, Any]]:
    """Return per arm its proven cells, roads expected and seen, and a row per witness.

    A row of ``witnesses`` has name, status, cells (how many of those with the witness), and of
    one cell with that status: expected, seen, where.
    """
    rows = []
    for arm in design.shown_arms:
        own = cells[cells["arm"] == arm]
        rows.append(
            {
                "arm": arm,
                "proven": int((own["outcome"] == "proven").sum()),
                "planned": len(own),
                "ucx_tls": _distinct(own["ucx_tls"]),
                "expected": _distinct(own["road_expected"]),
                "seen": _distinct(own["road_seen"]),
                "witnesses": _witness_rows(witnesses[witnesses["arm"] == arm]),
            }
        )
    return rows


def _distinct(texts: pd.Series[str]) -> str:
    return "; ".join(dict.fromkeys(texts.dropna())) or "none"


def _witness_rows(witnesses: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for name, group in witnesses.groupby("name", sort=False):
        for status in _ORDER:
            same = group[group["status"] == status].fillna("")
            if same.empty:
                continue
            first = same.iloc[0]
            rows.append(
                {
                    "name": str(name).replace("_", " "),
                    "status": status,
                    "cells": f"{len(same)} of {len(group)}",
                    "expected": _grouped(str(first["expected"])),
                    "seen": _grouped(str(first["seen"])),
                    "where": str(first["where"]),
                }
            )
    return rows


def _grouped(text: str) -> str:
    """Return a text with the digits of its counts in groups of three."""
    return _COUNT.sub(lambda digits: f"{int(digits.group()):,}", text)


def provenance_rows(facts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return each fact with its distinct values; many values are given as their number."""
    rows = []
    for name, values in facts.items():
        texts = [f"{v['value']} ({v['cells']})" for v in values]
        if len(texts) > _MANY:
            texts = [*texts[:_MANY], f"and {len(texts) - _MANY} other values"]
        rows.append({"name": name, "texts": texts})
    return rows
