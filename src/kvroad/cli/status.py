"""Exit statuses, and how a command line becomes a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvroad.errors import UserError

if TYPE_CHECKING:
    from kvroad.study.fields import Study

__all__ = [
    "CONF",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "NOT_COMPARABLE",
    "OPEN",
    "REPORTS",
    "RESULTS",
    "USAGE",
    "NotUnderstood",
    "study_of",
]

# Every command: 0 done, 1 not done or a bad finding, 2 a command line that cannot be meant.
DONE, FAILED, USAGE = 0, 1, 2
# `kvroad compare` alone: nothing shown either way, and nothing that may be compared.
OPEN, NOT_COMPARABLE = 3, 4

# 128 and the number of SIGINT, as shells have it.
INTERRUPTED = 130

CONF = Path("conf")
RESULTS = Path("results")
REPORTS = Path("reports")


class NotUnderstood(UserError):
    """Words of a command line that cannot be meant."""


def study_of(overrides: Sequence[str]) -> Study:
    """Compose the study that the overrides ask for.

    Raises
    ------
    NotUnderstood
        For whatever the composition refuses.
    """
    from kvroad.study.compose import compose

    try:
        return compose(overrides, CONF)
    except UserError as error:
        raise NotUnderstood(str(error)) from error
