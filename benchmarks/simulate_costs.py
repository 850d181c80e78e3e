"""Pulls of known cost, fitted as measured ones are: how often the intervals hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvroad.analysis.cost_model import Launches, fit_cost
from kvroad.analysis.cost_model.fit import Values, terms

__all__ = ["COSTS", "Cost", "draw_launches", "simulate_fits"]

# Regions per pull and bytes of a pull, as in the study `regions`.
CUTS = (1, 8, 64, 512, 4096, 16384)
PULL_BYTES = (57_671_680, 306_708_480)


@dataclass(frozen=True)
class Cost:
    """What a pull takes: microseconds, microseconds per descriptor, GB/s."""

    name: str
    t0_us: float
    per_descriptor_us: float
    gb_per_s: float

    @property
    def values(self) -> Values:
        """The parameters as a fit has them."""
        return np.array([self.t0_us, self.per_descriptor_us, 1e-3 / self.gb_per_s])


COSTS = (
    Cost("dear descriptors, fast bytes", 20.0, 7.0, 287.0),
    Cost("cheap descriptors, fast bytes", 40.0, 0.65, 200.0),
    Cost("free descriptors, slow bytes", 50.0, 0.0, 0.45),
)


def draw_launches(
    cost: Cost,
    rng: np.random.Generator,
    *,
    cuts: Sequence[int] = CUTS,
    pull_bytes: Sequence[int] = PULL_BYTES,
    launches: int = 4,
    noise: float = 0.02,
    misfit: float = 0.0,
) -> Launches:
    """Draw launches; ``misfit`` moves each point, with all its launches, off the model."""
    places = [(k, b) for b in pull_bytes for k in cuts for _ in range(launches)]
    descriptors, sizes = (np.array(v, dtype=float) for v in zip(*places, strict=True))
    moved = np.repeat(rng.normal(0, misfit, len(places) // launches), launches)
    terms_of = np.stack([np.ones_like(sizes), descriptors, sizes], axis=1)
    times = terms_of @ cost.values
    return Launches(descriptors, sizes, times * np.exp(moved + rng.normal(0, noise, len(times))))


def simulate_fits(n: int, seed: int, misfits: Sequence[float], alpha: float) -> pd.DataFrame:
    """Return a row per cost and misfit: the share of ``n`` fits whose intervals hold the truth.

    ``t0``, ``per_descriptor``, ``per_byte``: of the parameters; ``share``: of the operations'
    share of a pull in the middle; ``held_out``: measured means inside the stated error of a
    fit without their size, sizes at either end left out; ``half_width``: median, of the cost
    of a descriptor, as a share of it.
    """
    rows = []
    for number, (cost, misfit) in enumerate((c, m) for c in COSTS for m in misfits):
        rng = np.random.default_rng([seed, number])
        found = [_holds(cost, draw_launches(cost, rng, misfit=misfit), alpha) for _ in range(n)]
        row = pd.DataFrame(found).mean()
        widths = [f["half_width"] for f in found]
        rows.append({"cost": cost.name, "misfit": misfit, **row, "half_width": np.median(widths)})
    return pd.DataFrame(rows)


def _holds(cost: Cost, launches: Launches, alpha: float) -> dict[str, float]:
    fit = fit_cost(launches)
    names = ("t0", "per_descriptor", "per_byte")
    held: dict[str, float] = {}
    for name, unit, known in zip(names, np.eye(3), cost.values, strict=True):
        low, high = fit.interval(unit, alpha)
        held[name] = float(low <= known <= high)
    x = terms(512, PULL_BYTES[1])
    operations = np.array([0.0, 512.0, 0.0])
    total, share = float(x @ fit.values), float(operations @ fit.values / (x @ fit.values))
    half = fit.half_width((operations - share * x) / total, alpha)
    known_share = float(operations @ cost.values / (x @ cost.values))
    held["share"] = float(abs(known_share - share) <= half)
    dear = cost.per_descriptor_us
    held["half_width"] = fit.half_width(np.eye(3)[1], alpha) / dear if dear else np.nan
    return held | {"held_out": _held_out(launches, alpha)}


def _held_out(launches: Launches, alpha: float) -> float:
    """Return whether one inner size, at the larger pull, lies where the others predict it."""
    n_bytes = PULL_BYTES[1]
    here = (launches.descriptors == 512) & (launches.n_bytes == n_bytes)
    sizes = launches.n_bytes / launches.descriptors
    rest = fit_cost(launches.only(sizes != n_bytes / 512))
    x = terms(512, n_bytes)
    predicted = float(x @ rest.values)
    measured = float(np.exp(np.log(launches.times_us[here]).mean()))
    return float(abs(predicted / measured - 1) <= rest.stated_error(x, alpha))
