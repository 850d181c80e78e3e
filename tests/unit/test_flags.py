"""Drift, launches that stand apart, coarse clocks, and arms that may not be compared."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from noisy import PROMPTS, noisy, rows_of
from scipy import stats as scipy_stats
from synthetic import design_data, frames, planned

from kvroad.analysis.stats import contrasts_frame, launch_summary
from kvroad.analysis.stats.drift import fit_drift
from kvroad.analysis.stats.outliers import outlier_limit, robust_z
from kvroad.analysis.tables import DesignFile, common_grid, grid_of, parse_design
from kvroad.analysis.verdict import flag_notes, verdict_frame


class TestDrift:
    def test_one_group_is_the_line_of_scipy_over_the_span(self) -> None:
        x, y = np.array([1.0, 4.0, 5.0, 9.0]), np.array([0.1, 0.35, 0.31, 0.9])
        line = scipy_stats.linregress(x, y)
        got = fit_drift([(x, y)], 0.05)
        assert got.mean == pytest.approx(line.slope * 8)
        assert got.p_value == pytest.approx(line.pvalue)
        half = scipy_stats.t.ppf(0.975, 2) * line.stderr * 8
        assert (got.low, got.high) == (
            pytest.approx(got.mean - half),
            pytest.approx(got.mean + half),
        )

    def test_levels_of_groups_do_not_count(self) -> None:
        x = np.arange(6.0)
        got = fit_drift([(x[::2], 0.1 * x[::2]), (x[1::2], 7 + 0.1 * x[1::2])], 0.05)
        assert got.mean == pytest.approx(0.5)

    @pytest.mark.parametrize("x", [[1.0, 2.0], [3.0, 3.0, 3.0], [math.nan] * 4, []])
    def test_too_few_or_unknown_places_give_none(self, x: list[float]) -> None:
        assert math.isnan(fit_drift([(np.array(x), np.ones(len(x)))], 0.05).low)

    def with_drift(self, ratio: float, drift: float) -> pd.DataFrame:
        cells, design = frames(noisy(ratio, sd=0.002))
        grown = np.exp(math.log(drift) * (cells["executed_order"] - 1) / (len(cells) - 1))
        cells["pull_ms"] *= grown
        return rows_of(cells, design)

    def test_a_drift_as_large_as_the_effect_is_flagged_with_its_size(self) -> None:
        rows = self.with_drift(ratio=1.05, drift=1.10)
        assert rows["is_drifting"].all()
        assert rows["drift"].tolist() == pytest.approx([1.10] * 3, rel=0.01)
        assert ((rows["drift_low"] < 1.10) & (rows["drift_high"] > 1.10)).all()
        assert "values drifted by a factor of 1.1" in rows["note"].iloc[0]

    def test_a_drift_smaller_than_the_effect_is_reported_and_not_flagged(self) -> None:
        rows = self.with_drift(ratio=2.0, drift=1.10)
        assert not rows["is_drifting"].any()
        assert rows["drift"].tolist() == pytest.approx([1.10] * 3, rel=0.01)

    def test_without_drift_noise_is_no_drift(self) -> None:
        rows = self.with_drift(ratio=1.0, drift=1.0)
        assert not rows["is_drifting"].any()


class TestOutliers:
    def test_one_slow_launch_is_named_and_kept(self) -> None:
        cells, design = frames(noisy())
        before = rows_of(cells, design)
        where = (cells["arm"] == "tcp") & (cells["block"] == 2) & (cells["prompt_tokens"] == 8192)
        cells.loc[where, "pull_ms"] *= 1.3
        rows = rows_of(cells, design)
        assert rows["n_outliers"].tolist() == [0, 1, 0]
        assert rows.loc[8192, "outliers"].startswith("tcp block 2 (+")
        assert "launches that stand apart: tcp block 2" in rows.loc[8192, "note"]
        assert rows.loc[8192, "ratio"] > before.loc[8192, "ratio"] * 1.05
        assert rows.loc[8192, "n_pairs"] == 4

    def test_a_fast_launch_of_the_baseline_is_the_baselines(self) -> None:
        cells, design = frames(noisy())
        where = (cells["arm"] == "shm") & (cells["block"] == 0) & (cells["prompt_tokens"] == 4096)
        cells.loc[where, "pull_ms"] /= 1.3
        assert rows_of(cells, design).loc[4096, "outliers"].startswith("shm block 0 (+")

    @pytest.mark.parametrize("sizes", [(4,), (4, 4, 4), (8, 8, 8), (3, 5)])
    def test_normal_launches_are_flagged_as_seldom_as_said(self, sizes: tuple[int, ...]) -> None:
        rng = np.random.default_rng(5)
        limit = outlier_limit(sizes, 0.05)
        flagged = 0
        for _ in range(2000):
            z = robust_z([rng.normal(3.0, 0.02, n) for n in sizes], 0.0)
            flagged += bool(max(np.abs(part).max() for part in z) > limit)
        assert flagged <= 0.05 * 2000 + 3 * math.sqrt(2000 * 0.05 * 0.95)

    def test_two_launches_cannot_tell_which_stands_apart(self) -> None:
        assert outlier_limit((2, 2), 0.05) == math.inf
        assert robust_z([np.array([1.0, 9.0])], 0.0)[0].tolist() == [0.0, 0.0]

    def test_values_that_are_almost_equal_are_not_flagged_for_their_last_digit(self) -> None:
        z = robust_z([np.array([1.0, 1.0, 1.0, 1.0005])], floor=1e-3)
        assert np.abs(z[0]).max() < 1


class TestClock:
    @pytest.mark.parametrize("step_ms", [5, 20, 50])
    def test_the_step_of_rounded_times_is_found(self, step_ms: int) -> None:
        rng = np.random.default_rng(3)
        rounded = np.rint(rng.uniform(300, 900, 40) / step_ms) * step_ms * 1000
        assert grid_of(rounded) == step_ms * 1000

    def test_times_to_the_microsecond_lie_on_its_grid(self) -> None:
        rng = np.random.default_rng(3)
        assert grid_of(np.rint(rng.uniform(3e5, 9e5, 12))) == 1.0
        assert math.isnan(grid_of(rng.uniform(3e5, 9e5, 12)))

    def test_zeros_tell_nothing(self) -> None:
        assert math.isnan(grid_of(np.zeros(5)))
        assert math.isnan(grid_of(np.array([])))
        assert grid_of(np.array([0.0, 20_000.0, 60_000.0])) == 20_000.0

    def test_grids_are_put_together(self) -> None:
        assert common_grid([20.0, 50.0]) == 10.0
        assert common_grid([0.001, 5.0]) == pytest.approx(0.001)
        assert math.isnan(common_grid([5.0, math.nan]))
        assert math.isnan(common_grid([]))

    def test_the_interval_grows_by_half_a_step_to_either_side(self) -> None:
        cells, design = frames({"shm": {4096: [100.0] * 4}, "tcp": {4096: [200.0] * 4}})
        cells["pull_ms_grid"] = 20.0
        row = rows_of(cells, design).loc[4096]
        assert row["ratio_low"] == pytest.approx(190 / 110)
        assert row["ratio_high"] == pytest.approx(210 / 90)
        assert (row["difference_low"], row["difference_high"]) == (80.0, 120.0)
        summary = launch_summary(cells)
        shm = summary[(summary["arm"] == "shm") & (summary["metric"] == "pull_ms")].iloc[0]
        assert (shm["low"], shm["high"]) == (pytest.approx(90.0), pytest.approx(110.0))

    def test_a_rate_is_as_uncertain_as_its_pull(self) -> None:
        cells, design = frames({"shm": {4096: [100.0] * 4}, "tcp": {4096: [200.0] * 4}})
        cells["pull_ms_grid"], cells["goodput_gb_per_s"] = 20.0, 1.0
        row = rows_of(cells, design, "goodput_gb_per_s").loc[4096]
        assert row["ratio_low"] == pytest.approx(0.95 / 1.1)

    def test_a_fine_clock_goes_without_a_word(self) -> None:
        cells, design = frames(noisy())
        cells["pull_ms_grid"] = 0.001
        rows = rows_of(cells, design)
        assert not rows["is_quantised"].any()
        assert not rows["note"].str.contains("grid").any()


class TestWithheld:
    def declared(self, cells: pd.DataFrame, **arms: list[str]) -> DesignFile:
        design = planned(["shm", "tcp"], list(PROMPTS), 4)
        facts = {
            arm: {"declares": names, "series": arm, "operation": "read"}
            for arm, names in arms.items()
        }
        return parse_design(design_data(design, arms=facts))

    @pytest.mark.parametrize(
        ("column", "value", "why"),
        [
            ("descriptors", 9060, "descriptors 9,060 against 2,340"),
            ("pull_bytes", 1, "pull bytes 1 against 306,708,480"),
            ("nixl_version", "1.3.1", "nixl version 1.3.1 against 1.5.1"),
            ("ucx_version", "1.22.0", "ucx version 1.22.0 against 1.23.0"),
            (
                "environment",
                json.dumps({"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "warn"}),
                "UCX_LOG_LEVEL warn against info",
            ),
            (
                "environment",
                json.dumps({"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "info", "UCX_RNDV": "1"}),
                "UCX_RNDV 1 against unset",
            ),
        ],
    )
    def test_an_undeclared_difference_is_named_in_place_of_a_number(
        self, column: str, value: Any, why: str
    ) -> None:
        cells, design = frames(noisy())
        where = (cells["arm"] == "tcp") & (cells["prompt_tokens"] == 4096)
        cells.loc[where, column] = value
        rows = rows_of(cells, design)
        assert rows["withheld"].tolist() == [why, "", ""]
        assert rows["tested"].tolist() == ["none", "ratio", "ratio"]
        row = rows.loc[4096]
        assert np.isnan([row["ratio"], row["difference"], row["p_value"], row["drift"]]).all()
        frame = verdict_frame(contrasts_frame(cells, design), cells.assign(reason=""), design)
        judged = frame[frame["metric"] == "pull_ms"].iloc[0]
        assert judged["verdict"] == "withheld"
        assert f"The arms differ in {why}, which no variant declares." in judged["sentence"]
        assert f"tcp against shm, at 4,096 tokens: withheld, since they differ in {why}" in str(
            flag_notes(frame)
        )

    @pytest.mark.parametrize(
        ("column", "value", "setting"),
        [
            ("descriptors", 9060, "workload.block_tokens"),
            ("descriptors", 8, "engine.regions"),
            ("environment", json.dumps({"UCX_TLS": "tcp"}), "env.UCX_LOG_LEVEL"),
        ],
    )
    def test_what_a_variant_declares_may_differ(
        self, column: str, value: Any, setting: str
    ) -> None:
        cells, _ = frames(noisy())
        cells.loc[cells["arm"] == "tcp", column] = value
        design = self.declared(cells, shm=["env.UCX_TLS"], tcp=["env.UCX_TLS", setting])
        rows = rows_of(cells, design)
        assert rows["tested"].tolist() == ["ratio"] * 3
        assert rows["is_interleaved"].all()

    def test_arms_that_ask_for_versions_are_paired_across_them(self) -> None:
        cells, _ = frames(noisy())
        cells.loc[cells["arm"] == "tcp", ["nixl_version", "ucx_version"]] = ["1.3.1", "1.21.0"]
        names = ["env.UCX_TLS", "engine.nixl_version"]
        rows = rows_of(cells, self.declared(cells, shm=["env.UCX_TLS"], tcp=names))
        assert rows["is_interleaved"].all()
        assert rows["n_pairs"].tolist() == [4, 4, 4]
