"""Numbers as words, the same in the verdict, on the page and in figures."""

from __future__ import annotations

import math
from typing import Any, TypedDict, TypeVar, cast

import pandas as pd

__all__ = [
    "NOT_BOUNDED",
    "NO_NUMBER",
    "Tested",
    "interval",
    "limits",
    "limits_of",
    "number",
    "percent",
    "ratio_text",
    "records",
    "rows_of",
    "tokens_text",
    "value_text",
]

NOT_BOUNDED = "not bounded by these launches"
# Limits further apart say nothing of a value: two launches of a noisy arm give them.
_UNBOUNDED = 1e6
NO_NUMBER = ("refused", "not measured", "withheld")

R = TypeVar("R")


class Tested(TypedDict):
    """Those columns of a contrast that say between which limits it lies; see `limits_of`."""

    tested: str
    ratio_low: float
    ratio_high: float
    difference_low: float
    difference_high: float
    unit: str


def rows_of(frame: pd.DataFrame, row: type[R]) -> list[R]:
    """Return the rows of a frame as what ``row``, a TypedDict of its columns, says of them."""
    return cast("list[R]", records(frame))


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def number(value: float) -> str:
    """Return three significant digits without an exponent; 0 stays 0."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 9)}f}"


def ratio_text(ratio: float) -> str:
    """Return a ratio as in ``1.02x``, ``17.3x``, ``0.0831x``."""
    return f"{number(ratio)}x"


def percent(share: float) -> str:
    """Return a share as in ``95 %``."""
    return f"{100 * share:g} %"


def tokens_text(tokens: int) -> str:
    """Return a prompt length as in ``4,096``."""
    return f"{tokens:,}"


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, or ``no value``."""
    return "no value" if math.isnan(value) else f"{number(value)} {unit}"


def limits_of(row: Tested) -> tuple[float, float]:
    """Return the limits of a contrast on its tested scale: of the ratio, or of the difference."""
    if row["tested"] == "ratio":
        return row["ratio_low"], row["ratio_high"]
    return row["difference_low"], row["difference_high"]


def interval(row: Tested) -> str:
    """Return a contrast's interval on its tested scale, ``low to high``, or ``no interval``."""
    is_ratio = row["tested"] == "ratio"
    return _ratio_limits(*limits_of(row)) if is_ratio else limits(*limits_of(row), row["unit"])


def limits(low: float, high: float, unit: str = "") -> str:
    """Return ``low to high unit``, ``no interval``, or that the launches set no limits."""
    if math.isnan(low):
        return "no interval"
    if low > 0 and high > _UNBOUNDED * low:
        return NOT_BOUNDED
    return f"{number(low)} to {number(high)} {unit}".strip()


def _ratio_limits(low: float, high: float) -> str:
    """Return the limits of a ratio; beyond a factor of 1,000 only that much is said."""
    if math.isnan(low):
        return "no interval"
    if low < 0.001 and high > 1000:
        return NOT_BOUNDED
    lowest = "below 0.001" if low < 0.001 else number(low)
    highest = "above 1,000" if high > 1000 else number(high)
    # Both limits may lie beyond the same bound, and then neither says enough.
    if high < 0.001 or low > 1000:
        return f"{low:.2g} to {high:.2g}"
    return f"{lowest} to {highest}"
