"""The cost model against data of known parameters, and where it has to keep quiet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from studies import GEMMA
from synthetic import DESCRIPTOR_BYTES, design_data, planned, write_design

from benchmarks.simulate_costs import COSTS, Cost, draw_launches
from kvroad.analysis import cost_model
from kvroad.analysis.cost_model import CostTables, Launches, cost_tables, fit_cost, whatif
from kvroad.analysis.cost_model.break_even import fieller
from kvroad.analysis.cost_model.fit import terms
from kvroad.analysis.tables import parse_design
from kvroad.analysis.verdict import break_even_notes, cost_lines, held_out_note, point_lines
from kvroad.errors import UserError
from kvroad.publish import figures

NVLINK, SGL, TCP = COSTS
CUTS = (1, 8, 64, 512, 4096, 16384)
BYTES = {256: 57_671_680, 4096: 306_708_480}


def truth(descriptors: Any, n_bytes: Any, cost: Cost) -> Any:
    return cost.t0_us + cost.per_descriptor_us * descriptors + n_bytes / cost.gb_per_s / 1000


def test_estimates_are_close_and_not_negative() -> None:
    fit = fit_cost(draw_launches(NVLINK, np.random.default_rng(1)))
    assert fit.values.tolist() == pytest.approx([20.0, 7.0, 1e-3 / 287], rel=0.1)
    for seed in range(20):
        fit = fit_cost(draw_launches(TCP, np.random.default_rng(seed)))
        assert (fit.values >= 0).all()


def test_exact_data_give_exact_parameters() -> None:
    fit = fit_cost(draw_launches(SGL, np.random.default_rng(1), noise=0.0))
    assert fit.values.tolist() == pytest.approx([40.0, 0.65, 1e-3 / 200], rel=1e-6)
    assert fit.rms_error < 1e-9


def test_a_slow_launch_in_ten_moves_little() -> None:
    rng = np.random.default_rng(2)
    clean = draw_launches(NVLINK, rng)
    slow = np.where(rng.random(len(clean.times_us)) < 0.1, 1.5, 1.0)
    fit = fit_cost(Launches(clean.descriptors, clean.n_bytes, clean.times_us * slow))
    assert fit.values[1] == pytest.approx(7.0, rel=0.02)
    assert fit.values[2] == pytest.approx(1e-3 / 287, rel=0.05)


class TestWhatCannotBeTold:
    def test_one_descriptor_size_ties_descriptors_to_bytes(self) -> None:
        places = np.repeat([2340.0, 2980.0, 4260.0], 4)
        times = truth(places, places * DESCRIPTOR_BYTES, NVLINK)
        fit = fit_cost(Launches(places, places * DESCRIPTOR_BYTES, times))
        assert set(fit.confounded) >= {"per_descriptor", "per_byte"}
        assert not fit.is_told(np.array([0.0, 1.0, 0.0]))
        # Other pulls in descriptors of that size are told all the same.
        x = terms(3500, 3500 * DESCRIPTOR_BYTES)
        assert fit.is_told(x)
        assert float(x @ fit.values) == pytest.approx(truth(3500, 3500 * DESCRIPTOR_BYTES, NVLINK))
        assert not fit.is_told(terms(3500, 1e8))

    def test_one_size_of_pull_ties_the_start_to_the_bytes(self) -> None:
        fit = fit_cost(draw_launches(NVLINK, np.random.default_rng(1), pull_bytes=(BYTES[4096],)))
        assert fit.confounded == ("t0", "per_byte")
        unit = np.array([0.0, 1.0, 0.0])
        assert fit.is_told(unit)
        low, high = fit.interval(unit, 0.05)
        assert low <= 7.0 <= high
        assert fit.is_told(terms(100, BYTES[4096]))
        assert not fit.is_told(terms(100, 2 * BYTES[4096]))

    def test_one_point_tells_nothing_apart(self) -> None:
        fit = fit_cost(Launches(*(np.full(4, v) for v in (10.0, 1e6, 500.0))))
        assert set(fit.confounded) == {"t0", "per_descriptor", "per_byte"}
        assert math.isnan(fit.interval(np.array([0.0, 1.0, 0.0]), 0.05)[0])


def study(
    parameters: dict[str, Cost],
    *,
    cuts: tuple[int, ...] = CUTS,
    prompts: tuple[int, ...] = (256, 4096),
    noise: float = 0.02,
    bend: float = 1.0,
) -> tuple[pd.DataFrame, Any, dict[str, Any]]:
    """Return a study whose variants cut the bytes; ``bend`` moves one cut off the model."""
    rng = np.random.default_rng(9)
    arms = {f"{road}+regions{k}": (road, k) for road in parameters for k in cuts}
    planned_cells = planned(list(arms), list(prompts), 4)
    facts = {
        arm: {
            "declares": ["env.UCX_TLS", "engine.regions"],
            "series": f"{road} read",
            "operation": "read",
            "nominal_gb_per_s": 478.0 if road == "nvlink" else None,
        }
        for arm, (road, _) in arms.items()
    }
    data = design_data(planned_cells, arms=facts)
    rows = []
    for cell in planned_cells:
        road, k = arms[cell.arm]
        n_bytes = BYTES[cell.prompt_tokens]
        time = truth(k, n_bytes, parameters[road]) * np.exp(rng.normal(0, noise))
        time *= bend if k == cuts[len(cuts) // 2] else 1.0
        rows.append(
            {
                "cell": cell.cell,
                "arm": cell.arm,
                "prompt_tokens": cell.prompt_tokens,
                "block": cell.block,
                "outcome": "proven",
                "road_seen": {"nvlink": "cuda_ipc"}.get(road, road),
                "descriptors": k,
                "pull_bytes": n_bytes,
                "pull_ms": time / 1000,
                "post_ms": time / 2000,
            }
        )
    return pd.DataFrame(rows), parse_design(data), data


@pytest.fixture(scope="module")
def tables() -> CostTables:
    cells, design, _ = study({"nvlink": NVLINK, "tcp": Cost("", 50.0, 0.3, 40.0)})
    return cost_tables(cells, design)


class TestTables:
    def test_models_have_parameters_with_intervals_for_pull_and_post(
        self, tables: CostTables
    ) -> None:
        rows = tables.models.set_index(["series", "measure"])
        assert len(rows) == 4
        row = rows.loc["nvlink read", "pull_ms"]
        assert row["per_descriptor_low_us"] <= 7.0 <= row["per_descriptor_high_us"]
        assert row["gb_per_s_low"] <= 287 <= row["gb_per_s_high"]
        assert row["t0_low_us"] <= 20 <= row["t0_high_us"]
        assert (row["road"], row["operation"], row["is_identified"]) == ("cuda_ipc", "read", True)
        assert row["is_fitting"]
        assert row["rms_error"] < 0.03
        assert row["noise"] == pytest.approx(0.02, rel=0.3)
        post = rows.loc["nvlink read", "post_ms"]
        assert post["per_descriptor_us"] == pytest.approx(3.5, rel=0.05)

    def test_points_hold_shares_and_rates(self, tables: CostTables) -> None:
        points = tables.points[
            (tables.points["series"] == "nvlink read") & (tables.points["measure"] == "pull_ms")
        ]
        point = points[(points["descriptors"] == 4096) & (points["pull_bytes"] == BYTES[4096])]
        row = point.iloc[0]
        known = 7.0 * 4096 / truth(4096, BYTES[4096], NVLINK)
        assert row["operations_share_low"] <= known <= row["operations_share_high"]
        rate = BYTES[4096] / truth(4096, BYTES[4096], NVLINK) / 1000
        assert row["effective_gb_per_s"] == pytest.approx(rate, rel=0.05)
        assert row["effective_share"] == pytest.approx(rate / 478, rel=0.05)
        assert row["n_launches"] == 4

    def test_break_even_covers_the_known_size(self, tables: CostTables) -> None:
        rows = tables.break_even
        assert set(rows["pull_bytes"]) == set(BYTES.values())
        for row in rows.to_dict("records"):
            n_bytes = row["pull_bytes"]
            descriptors = (50 - 20 + n_bytes * (1 / 40 - 1 / 287) / 1000) / (7.0 - 0.3)
            size = n_bytes / descriptors
            assert row["break_even_low_bytes"] <= size <= row["break_even_high_bytes"]
            assert row["break_even_bytes"] == pytest.approx(size, rel=0.1)
            assert (row["faster_below"], row["faster_above"]) == ("tcp read", "nvlink read")
            assert not row["is_extrapolated"]

    def test_held_out_sizes_lie_within_the_stated_error(self, tables: CostTables) -> None:
        rows = tables.held_out[tables.held_out["measure"] == "pull_ms"]
        assert len(rows) == 2 * len(CUTS) * 2
        inside = rows[~rows["is_extrapolated"]]
        assert inside["is_within"].mean() >= 0.9
        assert inside["stated_error"].max() < 0.25

    def test_curves_stay_inside_the_measured_sizes(self, tables: CostTables) -> None:
        for (_, n_bytes), group in tables.curves.groupby(["series", "pull_bytes"]):
            assert group["descriptor_bytes"].min() == pytest.approx(n_bytes / max(CUTS))
            assert group["descriptor_bytes"].max() == pytest.approx(n_bytes)

    def test_without_a_crossing_the_faster_series_is_named(self) -> None:
        cells, design, _ = study(
            {"nvlink": Cost("", 20.0, 0.1, 287.0), "tcp": Cost("", 50.0, 3.0, 1.0)}
        )
        notes = set(cost_tables(cells, design).break_even["note"])
        assert notes == {"none: nvlink read is faster at every size"}

    def test_a_model_that_does_not_fit_explains_nothing(self) -> None:
        cells, design, _ = study({"nvlink": NVLINK}, bend=3.0)
        tables = cost_tables(cells, design)
        row = tables.models.iloc[0]
        assert not row["is_fitting"]
        assert row["note"].startswith("does not fit: its points are off by ")
        assert np.isnan(row["per_descriptor_us"])
        assert tables.points["operations_share"].isna().all()
        assert tables.break_even.empty
        assert tables.held_out.empty
        assert tables.curves.empty

    def test_one_descriptor_size_is_said_and_not_explained(self) -> None:
        cells, design, _ = study({"nvlink": NVLINK}, cuts=(1,))
        cells["descriptors"] = cells["pull_bytes"] // DESCRIPTOR_BYTES
        tables = cost_tables(cells, design)
        row = tables.models.iloc[0]
        assert not row["is_identified"]
        assert "cannot be told apart: every descriptor is of 131,072 bytes" in row["note"]
        assert np.isnan(row["per_descriptor_us"])
        assert np.isnan(row["gb_per_s"])
        assert tables.points["operations_share"].isna().all()

    def test_one_size_of_pull_still_tells_the_share_of_operations(self) -> None:
        cells, design, _ = study(
            {"nvlink": NVLINK, "tcp": Cost("", 50.0, 0.3, 40.0)}, prompts=(4096,)
        )
        tables = cost_tables(cells, design)
        row = tables.models.iloc[0]
        assert row["confounded"] == "t0, per_byte"
        assert row["per_descriptor_us"] == pytest.approx(7.0, rel=0.05)
        assert tables.points["operations_share"].notna().all()
        assert tables.break_even["break_even_bytes"].notna().all()

    def test_unproven_cells_are_left_out(self) -> None:
        cells, design, _ = study({"nvlink": NVLINK})
        cells["outcome"] = "refused"
        tables = cost_tables(cells, design)
        assert all(getattr(tables, field).empty for field in cost_model.TABLES)

    def test_files_are_written_and_read_back(self, tmp_path: Path) -> None:
        cells, _, data = study({"nvlink": NVLINK})
        cells.to_parquet(tmp_path / "cells.parquet")
        planned_cells = planned(sorted(set(cells["arm"])), [256, 4096], 4)
        design = write_design(tmp_path / "design.json", planned_cells, arms=data["arms"])
        cost_model.build(tmp_path / "cells.parquet", design, tmp_path)
        got = cost_model.read_tables(tmp_path)
        assert len(got.models) == 2
        assert (tmp_path / "cost_model.csv").is_file()


def test_fieller_is_the_interval_of_a_ratio() -> None:
    """1,000 ratios of two correlated normal estimates: 95 % are covered, less 3 sd."""
    rng = np.random.default_rng(3)
    covariance = np.array([[0.04, 0.01], [0.01, 0.09]])
    covered = 0
    for top, bottom in rng.multivariate_normal([6.0, 2.0], covariance, 1000):
        low, high = fieller(top, bottom, 0.04, 0.09, 0.01, 1.959964)
        covered += low <= 3.0 <= high
    assert covered >= 929
    assert fieller(1.0, 0.1, 0.01, 1.0, 0.0, 2.0) == (0.0, math.inf)


class TestWhatIf:
    def ask(self, tables: CostTables, **changes: Any) -> cost_model.Prediction:
        asked: dict[str, Any] = {
            "study": "h200",
            "road": "cuda_ipc",
            "operation": "read",
            "model": GEMMA,
            "prompt_tokens": 4096,
            "tensor_parallel_size": 4,
            "block_tokens": 64,
        }
        return whatif(tables.models, **{**asked, **changes})

    def test_predicts_pull_time_and_its_share_of_ttft(self, tables: CostTables) -> None:
        got = self.ask(tables, ttft_ms=200.0)
        known = truth(2340, 306_708_480, NVLINK) / 1000
        assert (got.descriptors, got.descriptor_bytes) == (2340, 131072)
        assert got.pull_low_ms <= known <= got.pull_high_ms
        assert got.pull_ms == pytest.approx(known, rel=0.03)
        assert got.ttft_share == pytest.approx(got.pull_ms / 200)
        assert got.outside == ()
        text = str(got)
        assert text.startswith("prediction from the fit of study h200 (nvlink read), not measured")
        assert "% of the time to first token" in text

    def test_fewer_regions_are_predicted_too(self, tables: CostTables) -> None:
        got = self.ask(tables, regions=8)
        assert got.descriptors == 8
        assert got.pull_ms == pytest.approx(truth(8, 306_708_480, NVLINK) / 1000, rel=0.05)

    def test_extrapolation_is_said(self, tables: CostTables) -> None:
        got = self.ask(tables, prompt_tokens=65536)
        assert "pull bytes" in str(got.outside)
        assert "EXTRAPOLATED" in str(got)

    def test_an_unknown_series_is_one_line_with_those_there_are(self, tables: CostTables) -> None:
        with pytest.raises(UserError, match=r"no series of 'cuda_ipc write'.*nvlink read, tcp"):
            self.ask(tables, operation="write")

    def test_of_several_series_one_has_to_be_named(self, tables: CostTables) -> None:
        twice = tables.models[tables.models["road"] == "cuda_ipc"]
        both = pd.concat([twice, twice.assign(series="nvlink read, num_threads=0")])
        models = CostTables(both, *(getattr(tables, f) for f in list(cost_model.TABLES)[1:]))
        with pytest.raises(UserError, match="several series of 'cuda_ipc read'"):
            self.ask(models)
        assert self.ask(models, series="nvlink read").series == "nvlink read"

    def test_what_explains_nothing_predicts_nothing(self) -> None:
        cells, design, _ = study({"nvlink": NVLINK}, bend=3.0)
        with pytest.raises(UserError, match="nothing is predicted from nvlink read: does not fit"):
            self.ask(cost_tables(cells, design))


class TestOnThePage:
    def test_the_figure_draws_what_the_tables_hold(self, tmp_path: Path) -> None:
        cells, design, _ = study({"nvlink": NVLINK, "tcp": Cost("", 50.0, 0.3, 40.0)})
        cells = cells.assign(reason="", road_expected="", where="", quote="")
        tables = cost_tables(cells, design)
        empty = pd.DataFrame()
        picture = figures.rate_picture(figures.Tables(cells, empty, empty, tables, design))
        figures.save(picture, tmp_path)
        data = pd.read_csv(tmp_path / "rate.csv")
        largest = BYTES[4096]
        assert set(data["pull_bytes"]) == {largest}
        points = tables.points.query("measure == 'pull_ms' and pull_bytes == @largest")
        drawn = data[data["kind"] == "measured"]
        assert drawn["gb_per_s"].tolist() == pytest.approx(points["effective_gb_per_s"].tolist())
        curve = tables.curves.query("pull_bytes == @largest")
        fits = data[data["kind"] == "fit"]
        assert fits["gb_per_s"].tolist() == pytest.approx(curve["gb_per_s"].tolist())
        even = data[data["kind"] == "break-even"]["descriptor_bytes"].tolist()
        known = tables.break_even.query("pull_bytes == @largest")["break_even_bytes"].tolist()
        assert even == pytest.approx(known)
        svg = (tmp_path / "rate.svg").read_text()
        for text in ("nvlink read", "rate of a pull (GB/s, log scale)", "equal at "):
            assert text in svg
        assert f"equal at descriptors of {known[0]:,.0f} bytes" in picture.alt

    def test_costs_are_put_in_words_with_intervals(self, tables: CostTables) -> None:
        nvlink, tcp = cost_lines(tables)
        assert (nvlink.series, nvlink.road) == ("nvlink read", "cuda_ipc")
        assert nvlink.per_descriptor.startswith(("6.9", "7.0"))
        assert " µs (" in nvlink.per_descriptor
        assert tcp.rate.endswith(")")
        assert len(cost_lines(tables, "post_ms")) == 2
        shares = [line.share for line in point_lines(tables) if line.series == "nvlink read"]
        assert shares[0].startswith("3 % (")
        assert any(line.rate.endswith("of the nominal 478") for line in point_lines(tables))

    def test_break_even_and_prediction_are_sentences(self, tables: CostTables) -> None:
        notes = break_even_notes(tables)
        assert len(notes) == 2
        assert "with smaller ones tcp read is faster, with larger ones nvlink read." in notes[0]
        note = held_out_note(tables)
        assert note.startswith("Each descriptor size predicted by a fit without it: ")
        assert "points between the others within the stated error" in note

    def test_what_is_not_told_is_said(self) -> None:
        cells, design, _ = study({"nvlink": NVLINK}, cuts=(1,))
        cells["descriptors"] = cells["pull_bytes"] // DESCRIPTOR_BYTES
        tables = cost_tables(cells, design)
        line = cost_lines(tables)[0]
        assert line.per_descriptor == line.rate == "not told"
        assert "cannot be told apart" in line.note
        assert {p.share for p in point_lines(tables)} == {"not told"}
        assert held_out_note(tables) == ""
