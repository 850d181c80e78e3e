"""The simulation judges as the product does, and small runs of it meet the targets."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import frames

from benchmarks import simulate
from benchmarks.simulate import NOISES, Truth, draw, judge
from benchmarks.simulate_costs import simulate_fits
from kvroad.analysis.stats import contrasts_frame
from kvroad.analysis.tables import METRICS

REPOSITORY = Path(__file__).parents[2]
PROMPTS = (4096, 8192, 16384)
N = 1500


@pytest.fixture(scope="module")
def benchmark():
    path = REPOSITORY / "benchmarks" / "statistics.py"
    spec = importlib.util.spec_from_file_location("statistics_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("launches", [4, 6])
def test_a_study_is_judged_as_by_the_product(noise: str, launches: int) -> None:
    studies = draw(Truth(1.02, noise, launches, n_arms=3), 6, np.random.default_rng(8))
    judged = judge(studies, 0.05)
    arms = ("shm", "a", "b")
    for i in range(len(studies.logs)):
        values = {
            arm: {p: list(np.exp(studies.logs[i, k, j])) for j, p in enumerate(PROMPTS)}
            for k, arm in enumerate(arms)
        }
        cells, design = frames(values)
        for k, arm in enumerate(arms):
            for j, tokens in enumerate(PROMPTS):
                where = (cells["arm"] == arm) & (cells["prompt_tokens"] == tokens)
                cells.loc[where, "executed_order"] = 1 + studies.order[k, j].astype(int)
        # The simulation is of this metric alone.
        others = [m.name for m in METRICS if m.name != "pull_ms"]
        pulls = contrasts_frame(cells.drop(columns=others, errors="ignore"), design)
        assert set(pulls["metric"]) == {"pull_ms"}
        for column, array in {
            "ratio": np.exp(judged.means),
            "ratio_low": np.exp(judged.lows),
            "ratio_high": np.exp(judged.highs),
            "p_value": judged.p_values,
            "p_holm": judged.p_holm,
            "is_drifting": judged.is_drifting,
            "is_uneven": judged.is_uneven,
        }.items():
            assert pulls[column].astype(float).tolist() == pytest.approx(
                array[i].astype(float).ravel().tolist()
            ), column
        assert (pulls["n_outliers"] > 0).tolist() == judged.is_outlier[i].ravel().tolist()


def test_the_order_is_that_of_the_design() -> None:
    order = simulate.launch_order(2, 4)
    assert sorted(order.ravel()) == list(range(24))
    # The arms of a block and prompt length run next to each other, each first twice.
    assert (np.abs(order[0] - order[1]) == 1).all()
    assert ((order[0] < order[1]).sum(axis=1) == 2).all()


def test_the_targets_are_met_in_small(benchmark) -> None:
    truths = [Truth(r, noise, n) for noise in NOISES for r in (1.0, 1.15) for n in (4, 10)]
    rows = simulate.simulate(truths, N, 2, 0.05, 0.05)
    assert benchmark.missed(rows) == []
    large = rows[(rows["ratio"] == 1.15) & (rows["noise"] == "normal")]
    assert large["shown"].min() > 0.99
    slow = rows[(rows["noise"] == "slow launches") & (rows["launches"] == 10)]
    assert slow["flag_if_slow"].min() > 0.9


def test_a_missed_target_is_said(benchmark) -> None:
    rows = simulate.simulate([Truth(1.0, n, 4) for n in NOISES], 400, 2, 0.05, 0.05)
    rows.loc[rows["noise"] == "normal", ["coverage", "false_rate"]] = [0.90, 0.10]
    rows.loc[rows["noise"] == "slow launches", "outlier_flag"] = 0.0
    assert [text.split(":")[0] for text in benchmark.missed(rows)] == [
        "normal, ratio 1, 4 launches",
        "normal, ratio 1, 4 launches",
        "the outlier flag does not rise with slow launches",
    ]


def test_errors_count_studies_and_not_comparisons() -> None:
    rows = simulate.simulate([Truth(1.0, "normal", 4)], N, 2, 0.05, 0.05)
    error = rows.loc[0, "false_rate_error"]
    rate = rows.loc[0, "false_rate"]
    assert error == pytest.approx(math.sqrt(rate * (1 - rate) / N), rel=0.01)


def test_the_page_that_is_published_is_of_the_command_it_names(benchmark) -> None:
    page = (REPOSITORY / "docs" / "statistics.md").read_text()
    assert "python benchmarks/statistics.py --studies 20000 --fits 1000 --seed 1" in page
    rows = simulate.simulate(benchmark.truths(), 60, 1, 0.05, 0.05)
    fits = simulate_fits(3, 1, benchmark.MISFITS, 0.05)
    small = benchmark.page(rows, fits, 60, 3, 1)
    headings = [line for line in small.splitlines() if line.startswith("#")]
    assert [line for line in page.splitlines() if line.startswith("#")] == headings
    assert pd.Series(rows["noise"]).nunique() == len(NOISES)


@pytest.mark.slow
def test_the_page_is_what_its_command_writes(benchmark) -> None:
    rows = simulate.simulate(benchmark.truths(), 20_000, 1, benchmark.ALPHA, benchmark.MARGIN)
    fits = simulate_fits(1000, 1, benchmark.MISFITS, benchmark.ALPHA)
    page = (REPOSITORY / "docs" / "statistics.md").read_text()
    assert benchmark.page(rows, fits, 20_000, 1000, 1) == page
