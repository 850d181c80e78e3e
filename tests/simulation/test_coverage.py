"""Intervals cover what they say, counted over many simulated studies."""

import numpy as np
import pytest
from noisy import noisy, rows_of
from synthetic import frames

from benchmarks.simulate_costs import COSTS, simulate_fits
from kvroad.analysis.tables import METRICS

NVLINK, _, _ = COSTS


@pytest.mark.parametrize(
    ("n", "least"), [(40, 0.85), pytest.param(200, 0.90, marks=pytest.mark.slow)]
)
def test_intervals_cover_known_parameters_and_predictions(n: int, least: float) -> None:
    """At least 95 % less 3 standard errors of the intervals cover: 180 of 200, 34 of 40."""
    rows = simulate_fits(n, 11, (0.0, 0.05), 0.05).set_index(["cost", "misfit"])
    assert len(rows) == 6
    for name in ("t0", "per_descriptor", "per_byte", "share", "held_out"):
        assert rows[name].min() >= least, rows[name]
    # Narrow enough to be of use: the dear descriptor is known to a percent.
    assert rows.loc[(NVLINK.name, 0.0), "half_width"] < 0.015


@pytest.mark.parametrize(
    ("step", "n"),
    [(5.0, 15), (50.0, 15)]
    + [pytest.param(step, 60, marks=pytest.mark.slow) for step in (5.0, 20.0, 50.0)],
)
def test_intervals_cover_the_truth_that_rounding_hides(step: float, n: int) -> None:
    """Launches of 0.1 % spread round to one value: the plain interval has no width."""
    covered, plain = 0, 0
    for seed in range(n):
        cells, design = frames(noisy(ratio=1.07, sd=0.001, seed=seed, ms=301.7 + seed))
        cells = cells.drop(columns=[m.name for m in METRICS if m.name != "pull_ms"])
        cells["pull_ms"] = np.rint(cells["pull_ms"] / step) * step
        rows = rows_of(cells, design)
        plain += int(rows["ratio_low"].le(1.07).mul(rows["ratio_high"].ge(1.07)).sum())
        cells["pull_ms_grid"] = step
        rows = rows_of(cells, design)
        covered += int(rows["ratio_low"].le(1.07).mul(rows["ratio_high"].ge(1.07)).sum())
        assert rows["is_quantised"].all()
        assert rows["grid"].eq(step).all()
        assert f"on a grid of {step:g} ms" in rows["note"].iloc[0]
    assert covered >= 0.95 * 3 * n
    assert plain < 0.8 * 3 * n
