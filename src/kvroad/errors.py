"""The one exception that a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["UserError", "nearest"]


class UserError(Exception):
    """Bad input or a host that cannot do what was asked.

    The text is one line: what is wrong, where, what is allowed. Entry points print
    it without a traceback and exit with a non-zero status.
    """


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest allowed spelling, or ``""``."""
    close = difflib.get_close_matches(str(word), [str(a) for a in allowed], n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
