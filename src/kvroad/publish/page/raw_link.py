"""Where the raw files of a report are: beside it once it is published."""

from __future__ import annotations

import re

from kvroad.analysis.saved_study import RAW_NAME

__all__ = ["raw_note", "with_raw_link"]

_NOTE = re.compile(r'(<p id="raw">).*?(</p>)', re.DOTALL)


def raw_note(*, is_published: bool) -> str:
    """Return the sentence on the raw files, as HTML."""
    if not is_published:
        return (
            "The raw files (logs, counters, every pull, host facts) are in"
            " <code>results/cells/</code> where the study was run."
        )
    return (
        f'The raw files (logs, counters, every pull, host facts) are in <a href="{RAW_NAME}">'
        f"{RAW_NAME}</a>; unpacked at the root of a checkout, the command above makes this report"
        " from them without measuring."
    )


def with_raw_link(page: str) -> str:
    """Return the page of a report with its sentence on the raw files pointing beside it."""
    return _NOTE.sub(lambda m: m.group(1) + raw_note(is_published=True) + m.group(2), page)
