"""What a metric is, and the phases that it is measured in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from kvroad.evidence.serving import ServedPhase

__all__ = ["IN_FLIGHT", "ONE_AT_A_TIME", "WARMUP", "Metric", "in_ms"]

WARMUP = "warmup"
ONE_AT_A_TIME = "one_at_a_time"
IN_FLIGHT = "in_flight"

_NO_TRANSFER = "nothing, since a failed transfer refuses the whole cell"


@dataclass(frozen=True)
class Metric:
    """One number of a launch, with what a replay and what serving engines make it of.

    A source that is not given means that such launches have no such value.

    Parameters
    ----------
    refusals
        What carries no number.
    of_pulls
        From a replay: the kept rows of the pulls table in ``phase``, all ranks together, to a
        value per row. A launch's value is their ``statistic``, divided by ``per_unit``.
    of_phase
        From serving engines: the records of ``phase`` to the launch's value in ``unit``; None
        where they do not say it.
    extra_of
        From serving engines: the name of another metric, of which this is what an arm has over
        an engine that serves alone. A difference in itself, which no ratio is made of.
    step_of_phase
        The step, in ``unit``, in which serving engines look at what ``of_phase`` gives.
    statistic, served_statistic
        What a launch's value is, as pandas calls it where there is ``of_pulls``; the second of
        serving engines, where theirs is another one.
    pull
        The whole that a part is a share of: pull time, or time to first token, of the phase.
    margin_key
        Key of the claims' margins where they do not have the metric's own name.
    default_margin
        Where they have neither; NaN: the metric is never called the same.
    order
        Metrics of a lower order come first in tables; those of one order as they are declared.
    is_time
        Whether ``of_pulls`` gives times, in microseconds, which lie on the grid of a clock.
    is_part
        An after-post time: zero is a valid value, so it is compared as a difference.
    is_main
        Whether its table stands unfolded in the verdict.
    needs_transfer
        Whether an engine that serves alone has no such value.
    """

    name: str
    label: str
    unit: str
    phase: str
    pull: str
    formula: str = ""
    served_formula: str = ""
    refusals: str = ""
    of_pulls: Callable[[pd.DataFrame], pd.Series[float]] | None = None
    of_phase: Callable[[ServedPhase], float | None] | None = None
    extra_of: str = ""
    step_of_phase: Callable[[ServedPhase], float | None] | None = None
    per_unit: float = 1.0
    statistic: str = "median"
    served_statistic: str = ""
    margin_key: str = ""
    default_margin: float = math.nan
    order: int = 100
    is_time: bool = False
    is_part: bool = False
    is_higher_better: bool = False
    is_main: bool = False
    needs_transfer: bool = True

    @property
    def is_served(self) -> bool:
        """Whether serving engines have it."""
        return self.of_phase is not None or self.is_difference

    @property
    def is_difference(self) -> bool:
        """Whether it is a difference in itself."""
        return bool(self.extra_of)

    @property
    def served_refusals(self) -> str:
        """What carries no number where engines serve."""
        return _NO_TRANSFER if self.needs_transfer else self.refusals


def in_ms(seconds: float | None) -> float | None:
    """Return milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds
