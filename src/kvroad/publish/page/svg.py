"""A picture for the inside of a page: its ids, its colours, its words for readers."""

from __future__ import annotations

import re

from markupsafe import Markup

from kvroad.publish.palette import GRID, INK, PALETTE, PAPER, SOFT

__all__ = ["inline_svg"]

# The page's variables by the colours of the pictures.
_INKS = {INK: "ink", SOFT: "soft", GRID: "line", PAPER: "paper"}
_VARIABLES = {
    **{colour: f"var(--{name})" for colour, name in _INKS.items()},
    **{colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)},
}


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """Return an SVG for the inside of a page: no prologue, ids of its own, text for readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    # In attributes of style alone: a text may hold what looks like a colour.
    body = re.sub(
        r'style="[^"]*"',
        lambda style: re.sub(
            r"#[0-9a-f]{6}", lambda c: _VARIABLES.get(c.group(), c.group()), style.group()
        ),
        body,
    )
    label = Markup('<svg role="img" aria-label="{}"').format(alt)
    return label + Markup(body.removeprefix("<svg"))
