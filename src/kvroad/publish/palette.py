"""Colours of the pictures, which the page exchanges for those of its theme."""

from __future__ import annotations

__all__ = ["GRID", "INK", "PALETTE", "PAPER", "SOFT"]

INK, SOFT, GRID, PAPER = "#1b1f24", "#5b6570", "#d5dae0", "#ffffff"
PALETTE = (
    "#0173b2",
    "#de8f05",
    "#029e73",
    "#d55e00",
    "#cc78bc",
    "#ca9161",
    "#fbafe4",
    "#949494",
    "#ece133",
    "#56b4e9",
)
"""Seaborn's ``colorblind`` palette."""
