"""Statistics against scipy, by hand, and against a known truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from synthetic import frames, planned, pull_rows, write_cell, write_design

from kvroad.analysis import stats, tables
from kvroad.analysis.stats import contrasts_frame, holm, launch_summary, pooled_t, welch
from kvroad.analysis.stats.estimates import guarded_t, is_uneven
from kvroad.analysis.tables import METRICS


def pick(contrasts: pd.DataFrame, metric: str = "pull_ms", tokens: int = 4096) -> pd.Series[Any]:
    rows = contrasts[(contrasts["metric"] == metric) & (contrasts["prompt_tokens"] == tokens)]
    assert len(rows) == 1
    return rows.iloc[0]


SHM = [10.0, 11.0, 9.0, 10.5]
TCP = [20.0, 23.0, 17.5, 22.0]


def test_one_prompt_is_the_paired_t_of_scipy() -> None:
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}})))
    theirs = scipy_stats.ttest_rel(np.log(TCP), np.log(SHM))
    limits = theirs.confidence_interval(0.95)
    assert row["p_value"] == pytest.approx(theirs.pvalue, rel=1e-12)
    assert row["ratio"] == pytest.approx(np.exp(np.mean(np.log(TCP) - np.log(SHM))), rel=1e-12)
    assert row["ratio_low"] == pytest.approx(math.exp(limits.low), rel=1e-9)
    assert row["ratio_high"] == pytest.approx(math.exp(limits.high), rel=1e-9)
    assert (row["n_pairs"], row["df"], row["is_interleaved"]) == (4, 3, True)
    assert row["arm_value"] / row["baseline_value"] == pytest.approx(row["ratio"])


def test_difference_is_the_paired_t_of_its_own_prompt() -> None:
    arms = {"shm": {4096: SHM, 8192: [1, 2, 3, 4]}, "tcp": {4096: TCP, 8192: [9, 7, 5, 6]}}
    row = pick(contrasts_frame(*frames(arms)))
    limits = scipy_stats.ttest_rel(TCP, SHM).confidence_interval(0.95)
    assert row["difference"] == pytest.approx(np.mean(TCP) - np.mean(SHM))
    assert row["difference_low"] == pytest.approx(limits.low)
    assert row["difference_high"] == pytest.approx(limits.high)


def test_residual_variance_is_pooled_over_prompts() -> None:
    # Residuals ±1 (n = 2) and -1, 0, 1 (n = 3): s2 = (2 + 2) / (1 + 2).
    groups = {1: np.array([4.0, 6.0]), 2: np.array([9.0, 10.0, 11.0])}
    got = pooled_t(groups, 0.05)
    s, t = math.sqrt(4 / 3), scipy_stats.t.ppf(0.975, 3)
    assert (got[1].mean, got[2].mean, got[1].df, got[1].sd) == (5.0, 10.0, 3, pytest.approx(s))
    assert got[1].high - got[1].mean == pytest.approx(t * s / math.sqrt(2))
    assert got[2].mean - got[2].low == pytest.approx(t * s / math.sqrt(3))


def test_uneven_spreads_take_the_wider_of_the_pooled_and_the_own_interval() -> None:
    quiet, loud = np.array([5.0, 5.001, 4.999, 5.0]), np.array([1.0, 9.0, 4.0, 6.0])
    groups = {1: quiet, 2: loud}
    pooled, got = pooled_t(groups, 0.05), guarded_t(groups, 0.05)
    own = scipy_stats.ttest_1samp(loud, 0.0)
    assert is_uneven(groups)
    assert got[1] == pooled[1]
    assert got[2].high - got[2].low > pooled[2].high - pooled[2].low
    assert got[2].p_value == pytest.approx(own.pvalue)
    assert got[2].df == 3


def test_evenness_is_bartletts() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 2.0, 4.0):
        groups = {i: rng.normal(0, s, n) for i, (s, n) in enumerate([(1, 4), (scale, 6), (1, 5)])}
        theirs = scipy_stats.bartlett(*groups.values())
        assert is_uneven(groups) == (theirs.pvalue < 0.10)
    assert not is_uneven({1: np.array([1.0, 5.0]), 2: np.array([1.0, 1.1, 1.2])})
    assert not is_uneven({1: np.ones(4), 2: np.ones(4)})
    assert is_uneven({1: np.ones(4), 2: np.array([1.0, 2.0, 3.0])})


def test_a_single_pair_has_no_interval_even_beside_other_prompts() -> None:
    got = pooled_t({1: np.array([5.0]), 2: np.array([9.0, 11.0])}, 0.05)
    assert got[1].mean == 5.0
    assert math.isnan(got[1].low)
    assert got[2].low < 10 < got[2].high


def test_welch_is_scipy_s() -> None:
    a, b = np.array([3.0, 4.0, 6.0, 5.5]), np.array([1.0, 1.5, 0.5])
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False)
    got = welch(a, b, 0.05)
    assert got.p_value == pytest.approx(theirs.pvalue)
    assert got.df == pytest.approx(theirs.df)
    assert got.low == pytest.approx(theirs.confidence_interval(0.95).low)


def test_holm_by_hand() -> None:
    p = pd.Series([0.04, 0.01, math.nan, 0.03])
    adjusted = pd.Series(holm(p.to_numpy()))
    assert adjusted.dropna().tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert math.isnan(adjusted[2])


def test_holm_runs_over_contrasts_and_prompts_of_a_metric() -> None:
    arms = {
        arm: {4096: [v * f for v in SHM], 8192: [v * f * 2 for v in TCP]}
        for arm, f in {"shm": 1.0, "tcp": 1.5, "again": 1.01}.items()
    }
    frame, design = frames(arms)
    contrasts = contrasts_frame(frame, design)
    pulls = contrasts[contrasts["metric"] == "pull_ms"]
    assert set(pulls["n_comparisons"]) == {4}
    assert pulls["p_holm"].tolist() == holm(pulls["p_value"]).tolist()
    assert len(contrasts) == 2 * 2 * len(METRICS)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("run_id", "run-2", "different runs"),
        ("run_id", None, "runs not known"),
        ("ucx_version", None, "versions not known"),
        ("boot_id", "boot-2", "different boots"),
    ],
)
def test_arms_of_other_runs_boots_versions_are_not_paired(
    column: str, value: str | None, why: str
) -> None:
    at = {("tcp", block): {column: value} for block in range(4)}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    theirs = scipy_stats.ttest_ind(np.log(TCP), np.log(SHM), equal_var=False)
    assert not row["is_interleaved"]
    assert row["n_pairs"] == 0
    assert row["note"] == f"not interleaved: {why}"
    assert row["p_value"] == pytest.approx(theirs.pvalue)


def test_blocks_of_another_run_are_left_out_of_the_pairs() -> None:
    at = {("tcp", 3): {"run_id": "run-2"}}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    assert row["is_interleaved"]
    assert row["n_pairs"] == 3
    assert row["note"] == "1 of 4 blocks left out: different runs"
    assert row["p_value"] == pytest.approx(
        scipy_stats.ttest_rel(np.log(TCP[:3]), np.log(SHM[:3])).pvalue
    )


def test_each_block_may_be_of_its_own_run() -> None:
    at = {(arm, block): {"run_id": f"run-{block}"} for arm in ("shm", "tcp") for block in range(4)}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    assert (row["is_interleaved"], row["n_pairs"]) == (True, 4)


def test_versions_that_change_between_blocks_are_not_pooled_as_pairs() -> None:
    at = {(arm, 3): {"nixl_version": "1.3.1"} for arm in ("shm", "tcp")}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    assert not row["is_interleaved"]
    assert row["note"] == "not interleaved: versions change between blocks"


def test_unproven_launches_leave_their_block_out() -> None:
    at = {("tcp", 1): {"outcome": "refused", "pull_ms": math.nan}}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    assert row["n_pairs"] == 3
    assert row["note"] == "tcp: 3 of 4 launches proven"


def test_no_proven_launch_leaves_an_empty_row() -> None:
    at = {("tcp", block): {"outcome": "refused", "pull_ms": math.nan} for block in range(4)}
    row = pick(contrasts_frame(*frames({"shm": {4096: SHM}, "tcp": {4096: TCP}}, at=at)))
    assert row["tested"] == "none"
    assert np.isnan([row["ratio"], row["difference"], row["p_value"], row["p_holm"]]).all()
    assert row["baseline_value"] == pytest.approx(np.exp(np.mean(np.log(SHM))))


def test_two_launches_are_an_interval_and_one_is_none() -> None:
    one = pick(contrasts_frame(*frames({"shm": {4096: [10.0]}, "tcp": {4096: [20.0]}})))
    assert one["ratio"] == pytest.approx(2.0)
    assert math.isnan(one["ratio_low"])
    assert "one launch each: no interval" in one["note"]
    two = pick(contrasts_frame(*frames({"shm": {4096: SHM[:2]}, "tcp": {4096: TCP[:2]}})))
    assert two["ratio_low"] < two["ratio"] < two["ratio_high"]


class TestAfterPost:
    def contrast(self, shm: list[float], tcp: list[float]) -> pd.Series[Any]:
        frame, design = frames({"shm": {4096: [10.0] * 4}, "tcp": {4096: [20.0] * 4}})
        for arm, values in (("shm", shm), ("tcp", tcp)):
            frame.loc[frame["arm"] == arm, "after_post_ms"] = values
        return pick(contrasts_frame(frame, design), "after_post_ms")

    def test_is_a_ratio_where_both_arms_spend_more_than_5_percent_there(self) -> None:
        row = self.contrast([0.51, 0.52, 0.53, 0.52], [2.0, 2.1, 2.2, 2.1])
        assert row["tested"] == "ratio"
        assert row["ratio"] > 4
        assert row["difference"] == pytest.approx(1.58)

    def test_is_a_difference_where_one_arm_does_not(self) -> None:
        row = self.contrast([0.0, 0.0, 0.0, 0.0], [2.0, 2.1, 2.2, 2.1])
        assert row["tested"] == "difference"
        assert math.isnan(row["ratio"])
        assert row["note"] == "completed inside the post over shm: compared as a difference"
        assert row["p_value"] == pytest.approx(
            scipy_stats.ttest_rel([2.0, 2.1, 2.2, 2.1], [0.0] * 4).pvalue
        )
        # The margin is a share of the baseline's pull of 10 ms.
        assert (row["same_low"], row["same_high"]) == (pytest.approx(-0.5), pytest.approx(0.5))

    def test_values_below_zero_have_no_log_ratio(self) -> None:
        row = self.contrast([-0.1, 3.0, 3.0, 3.0], [2.0, 2.1, 2.2, 2.1])
        assert math.isnan(row["ratio"])
        assert row["note"].startswith("no ratio of values that are not above zero")


def test_equal_launches_show_that_the_clock_may_hide_their_spread() -> None:
    row = pick(contrasts_frame(*frames({"shm": {4096: [10.0] * 4}, "tcp": {4096: [10.0] * 4}})))
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (1.0, 1.0, 1.0)
    assert row["p_value"] == 1.0
    assert "no spread between launches" in row["note"]


def test_summary_is_a_geometric_mean_with_its_t_interval() -> None:
    frame, _ = frames({"shm": {4096: SHM}, "tcp": {4096: TCP}})
    summary = launch_summary(frame)
    row = summary[(summary["arm"] == "shm") & (summary["metric"] == "pull_ms")].iloc[0]
    theirs = scipy_stats.ttest_1samp(np.log(SHM), 0).confidence_interval(0.95)
    assert row["n_launches"] == 4
    assert row["value"] == pytest.approx(scipy_stats.gmean(SHM))
    assert (row["low"], row["high"]) == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)))


def test_intervals_cover_a_known_truth() -> None:
    """400 contrasts of 4 launches at 3 prompts: 95 % intervals cover in 1,140 of 1,200 ± 3 sd."""
    rng = np.random.default_rng(7)
    covered = false_alarms = 0
    for _ in range(400):
        groups = {p: rng.normal(math.log(1.03), 0.02, 4) for p in (1, 2, 3)}
        estimates = pooled_t(groups, 0.05).values()
        covered += sum(e.low <= math.log(1.03) <= e.high for e in estimates)
        nothing = {p: y - math.log(1.03) for p, y in groups.items()}
        p_values = pd.Series([e.p_value for e in pooled_t(nothing, 0.05).values()])
        false_alarms += bool((holm(p_values) < 0.05).any())
    assert 1117 <= covered <= 1163
    assert false_alarms <= 0.05 * 400 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_build_from_files(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 4)
    for number, cell in enumerate(cells):
        factor = 2 if cell.arm == "tcp" else 1
        xfer = 1000.0 * factor * (10 + cell.block)
        rows = pull_rows(cell, lambda *_, x=xfer: (x / 2, x), pulls=3)
        write_cell(tmp_path, cell, rows, order=number)
    design = write_design(tmp_path / "design.json", cells)
    tables.build(design, tmp_path, tmp_path)
    stats.build(tmp_path / "cells.parquet", design, tmp_path)
    row = pick(pd.read_parquet(tmp_path / "contrasts.parquet"))
    assert row["ratio"] == pytest.approx(2.0)
    assert (tmp_path / "launch_summary.csv").is_file()
