"""The page that answers: one self-contained HTML file."""

from __future__ import annotations

from kvroad.publish.page.page import build, command_line
from kvroad.publish.page.roads import provenance_rows, road_rows
from kvroad.publish.page.svg import inline_svg

__all__ = [
    "build",
    "command_line",
    "inline_svg",
    "provenance_rows",
    "road_rows",
]
