"""What is promised before a run, against drawing it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit
from synthetic import frames

from kvroad.analysis.stats import contrasts_frame, launch_summary, power

DRAWS = 4000


def drawn(sd: float, n: int, prompts: int, ratio: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return means, half widths and t of contrasts at one of several prompt lengths."""
    y = np.random.default_rng(2).normal(math.log(ratio), sd, (DRAWS, prompts, n))
    df = prompts * (n - 1)
    s = np.sqrt(((y - y.mean(axis=2, keepdims=True)) ** 2).sum(axis=(1, 2)) / df)
    return y[:, 0].mean(axis=1), stdtrit(df, 0.975) * s / math.sqrt(n), df


def within(share: float, expected: float) -> bool:
    return abs(share - expected) < 4 * math.sqrt(max(expected * (1 - expected), 1e-3) / DRAWS)


@pytest.mark.parametrize(("sd", "n", "prompts"), [(0.02, 4, 1), (0.05, 4, 3), (0.03, 10, 2)])
def test_width_and_chance_of_same(sd: float, n: int, prompts: int) -> None:
    means, halves, _ = drawn(sd, n, prompts, 1.0)
    assert power.expected_half_width(sd, n, 0.05, prompts) == pytest.approx(halves.mean(), rel=0.03)
    same = (np.abs(means) + halves <= math.log(1.05)).mean()
    assert within(same, power.chance_of_same(sd, n, 0.05, 0.05, prompts))


@pytest.mark.parametrize(("sd", "ratio", "n"), [(0.03, 1.03, 4), (0.1, 1.15, 8)])
def test_chance_of_difference(sd: float, ratio: float, n: int) -> None:
    means, halves, df = drawn(sd, n, 3, ratio)
    limits = halves * stdtrit(df, 1 - 0.05 / 6) / stdtrit(df, 0.975)
    shown = (np.abs(means) > limits).mean()
    assert within(shown, power.chance_of_difference(sd, n, ratio, 0.05, 3, 3))


def test_one_launch_promises_nothing() -> None:
    assert power.expected_half_width(0.01, 1, 0.05) == math.inf
    assert power.chance_of_same(0.01, 1, 0.05, 0.05) == 0.0
    assert power.chance_of_difference(0.01, 1, 2.0, 0.05) == 0.0


def test_spread_is_that_of_the_launches() -> None:
    rng = np.random.default_rng(4)
    arms = {
        arm: {p: list(100 * np.exp(rng.normal(0, 0.02, 40))) for p in (4096, 8192, 16384)}
        for arm in ("shm", "tcp")
    }
    cells, design = frames(arms)
    of_contrasts = power.spread_of_contrasts(contrasts_frame(cells, design))
    of_summary = power.spread_of_summary(launch_summary(cells))
    for spreads in (of_contrasts, of_summary):
        assert spreads["pull_ms"] == pytest.approx(0.02 * math.sqrt(2), rel=0.15)
    assert "after_post_ms" not in of_summary


def test_the_plan_has_a_row_per_metric() -> None:
    plan = power.plan_power(
        {"pull_ms": 0.02, "goodput_gb_per_s": 0.02},
        {"pull_ms": 0.05},
        launches=4,
        alpha=0.05,
        n_prompts=3,
        n_comparisons=3,
    ).set_index("metric")
    row = plan.loc["pull_ms"]
    assert row["interval_low"] * row["interval_high"] == pytest.approx(1.0)
    assert 0.9 < row["chance_of_same"] < 1
    assert row["chance_of_difference"] > 0.99
    # Without a margin there is no word for "same".
    assert plan.loc["goodput_gb_per_s", "chance_of_same"] == 0.0
