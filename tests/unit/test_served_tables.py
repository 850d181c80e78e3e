"""Phases of serving engines to the row of a cell: every metric by hand, and what is paired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from served import Load, write_served
from synthetic import frames, planned

from kvroad.analysis import stats
from kvroad.analysis.tables import DesignCell, statistic_of
from kvroad.analysis.tables.cells import cells_table, pulls_table, read_cells
from kvroad.analysis.tables.metrics import METRICS

ONE = Load(
    transfers=8,  # four requests of two ranks
    xfer_s=0.8,
    post_s=0.2,
    n_bytes=8e9,
    descriptors=8000,
    # First tokens after 0.1, 0.2, 0.4 and 0.3 s; one failed.
    requests=[(0, 0.1, 0.5), (1, 1.2, 1.6), (2, 2.4, 3.2), (3, 3.3, 3.7), (9, 9, None)],
)
FLIGHT = Load(
    transfers=4,
    xfer_s=0.6,
    post_s=0.6,
    n_bytes=4e9,
    descriptors=3000,
    requests=[(10, 11, 13), (10, 12, 12.4), (10.5, 12, 14), (11, 12, 20)],
)
WARMUP = Load(transfers=3, xfer_s=90.0, post_s=90.0, requests=[(0, 5, 9)] * 3)
PHASES = {"warmup": WARMUP, "one_at_a_time": ONE, "in_flight": FLIGHT}


def cells_of(folder: Path, cells: list[DesignCell]) -> pd.DataFrame:
    folders = read_cells(cells, folder)
    return cells_table(folders, pulls_table(folders), is_served=True).set_index("cell")


def alone(ttft_s: float, prompts: str | None = "same") -> dict[str, Load]:
    requests = [(float(i), i + ttft_s, i + 0.9) for i in range(3)]
    return {"one_at_a_time": Load(requests=requests, prompts=prompts)}


def test_every_metric_of_a_phase(tmp_path: Path) -> None:
    (cell,) = planned(["nvlink"], [4096], 1)
    write_served(tmp_path, cell, PHASES, cache_check="equal")
    row = cells_of(tmp_path, [cell]).loc[cell.cell]
    expected = {
        "pull_ms": 100.0,
        "post_ms": 25.0,
        "after_post_ms": 75.0,
        "goodput_gb_per_s": 10.0,
        "descriptors_moved": 1000.0,
        "bytes_moved": 1e9,
        "ttft_p50_one_at_a_time": 250.0,
        # 0.1, 0.1, 0.2 and 0.1 s between five tokens.
        "itl_p50_one_at_a_time": 100.0,
        "pull_in_flight_ms": 150.0,
        "post_in_flight_ms": 150.0,
        "after_post_in_flight_ms": 0.0,
        "descriptors_moved_in_flight": 750.0,
        "bytes_moved_in_flight": 1e9,
        "ttft_p50_in_flight": 1250.0,
        # 0.5, 0.1, 0.5 and 2 s between tokens.
        "itl_p50_in_flight": 500.0,
        "pull_in_flight_ms_step": 500.0,
        "requests_per_s_in_flight": 4 / (20 - 10),
    }
    assert row[list(expected)].astype(float).to_dict() == pytest.approx(expected, abs=1e-6)
    named = {m.name for m in METRICS} - {"extra_ttft_ms"}
    assert named <= set(expected)
    counts = {"n_pulls": 12, "n_warmup": 3, "n_requests": 8, "n_failed_requests": 1}
    assert row[list(counts)].to_dict() == counts
    assert row["engine_version"] == "vllm 0.23.0, ai-dynamo 1.3.1"
    assert (row["statistic"], row["cache_check"]) == ("mean", "equal")


def test_without_an_engine_that_serves_alone_there_is_no_extra_column(tmp_path: Path) -> None:
    (cell,) = planned(["nvlink"], [4096], 1)
    write_served(tmp_path, cell, PHASES)
    frame = cells_of(tmp_path, [cell])
    assert "extra_ttft_ms" not in frame
    assert frame["cache_check"].tolist() == ["not checked"]


def test_a_cell_that_is_not_proven_has_counts_and_no_metric(tmp_path: Path) -> None:
    (cell,) = planned(["nvlink"], [4096], 1)
    write_served(tmp_path, cell, PHASES, outcome="refused")
    row = cells_of(tmp_path, [cell]).iloc[0]
    assert row[[m.name for m in METRICS if m.name in row]].isna().all()
    assert row["n_requests"] == 8


def test_an_engine_that_serves_alone_has_no_pull_and_nothing_to_check(tmp_path: Path) -> None:
    (cell,) = planned(["none"], [4096], 1)
    write_served(tmp_path, cell, alone(0.2))
    row = cells_of(tmp_path, [cell]).iloc[0]
    assert row[["pull_ms", "post_ms", "goodput_gb_per_s", "descriptors_moved"]].isna().all()
    assert pd.isna(row["cache_check"])
    assert row["ttft_p50_one_at_a_time"] == pytest.approx(200.0)
    assert row["extra_ttft_ms"] == 0


def test_extra_time_is_paired_by_block_variant_and_prompt(tmp_path: Path) -> None:
    cells = planned(["nvlink", "nvlink+b16", "none", "none+b16"], [4096, 8192], 2)
    ttft: dict[tuple[str, int, int], float] = {}
    for number, cell in enumerate(cells):
        own = 0.1 + 0.01 * number + (0.2 if cell.transport == "nvlink" else 0.0)
        ttft[cell.arm, cell.prompt_tokens, cell.block] = own
        write_served(tmp_path, cell, alone(own))
    frame = cells_of(tmp_path, cells)
    for cell in cells:
        base = "none+b16" if cell.variant == "b16" else "none"
        place = cell.prompt_tokens, cell.block
        expected = 1e3 * (ttft[(cell.arm, *place)] - ttft[(base, *place)])
        assert frame.loc[cell.cell, "extra_ttft_ms"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "prompts", "is_known"),
    [
        ({}, "same", True),
        ({}, None, True),
        ({}, "others", False),
        ({"run_id": "run-2"}, "same", False),
        ({"outcome": "refused"}, "same", False),
        ({"outcome": "failed"}, "same", False),
    ],
)
def test_extra_time_needs_the_same_run_and_prompts_and_a_proof(
    tmp_path: Path, changes: dict[str, Any], prompts: str | None, is_known: bool
) -> None:
    arm, none = planned(["nvlink", "none"], [4096], 1)
    write_served(tmp_path, arm, alone(0.35))
    write_served(tmp_path, none, alone(0.1, prompts), **changes)
    extra = cells_of(tmp_path, [arm, none]).loc[arm.cell, "extra_ttft_ms"]
    assert (extra == pytest.approx(250.0)) if is_known else pd.isna(extra)


def test_the_hash_of_prompts_is_over_all_measured_phases(tmp_path: Path) -> None:
    cells = planned(["a", "b", "c", "d"], [4096], 1)
    others = [("x", "y"), ("x", "y"), ("x", "z"), ("x", None)]
    for cell, (one, flight) in zip(cells, others, strict=True):
        phases = {
            "warmup": Load(prompts=cell.arm),
            "one_at_a_time": Load(prompts=one),
            "in_flight": Load(prompts=flight),
        }
        write_served(tmp_path, cell, phases)
    hashes = cells_of(tmp_path, cells)["prompts"].tolist()
    assert hashes[0] == hashes[1] != hashes[2]
    assert pd.isna(hashes[3])


def served_frames(**columns: dict[str, Any]) -> tuple[pd.DataFrame, Any]:
    """Return two arms at 10 and 12 ms; ``columns`` map a name to a value per arm."""
    values = {"nvlink": {4096: [10.0, 10.1, 9.9, 10.0]}, "roce": {4096: [12.0, 12.1, 11.9, 12.0]}}
    frame, design = frames(values)
    frame["statistic"] = "mean"
    for name, by_arm in columns.items():
        frame[name] = frame["arm"].map(by_arm)
    return frame, design


def test_arms_with_other_prompts_are_not_compared() -> None:
    for other, withheld in (("a", ""), ("b", "prompts b against a")):
        frame, design = served_frames(prompts={"nvlink": "a", "roce": other})
        contrasts = stats.contrasts_frame(frame, design)
        assert set(contrasts["withheld"]) == {withheld}
        assert contrasts["ratio"].isna().all() == bool(withheld)
        assert (contrasts["tested"] == "none").all() == bool(withheld)


def test_pulls_no_longer_than_a_step_are_flagged_and_widened() -> None:
    contrasts = {}
    for step in (0.001, 4.0):
        steps = {"nvlink": step, "roce": step}
        frame, design = served_frames(
            pull_in_flight_ms_step=steps, after_post_in_flight_ms_step=steps
        )
        found = stats.contrasts_frame(frame, design).set_index("metric")
        contrasts[step] = found.loc["pull_in_flight_ms"]
        assert not found.loc["pull_ms", "is_quantised"]
    assert not contrasts[0.001]["is_quantised"]
    row = contrasts[4.0]
    assert row["is_quantised"]
    assert row["grid"] == 4.0
    assert "decode sees the end of a pull once in a step of about 4 ms" in row["note"]
    # Half a step each way: 12 ± 2 over 10 ± 2.
    assert row["ratio_low"] < 10 / 12 * 1.01
    assert row["ratio_high"] > 14 / 8 * 0.99


def test_what_a_value_is_is_said_truly() -> None:
    served = {m.name: statistic_of(m, is_served=True) for m in METRICS}
    assert {name for name, text in served.items() if text == "mean"} == {
        *("pull_ms", "post_ms", "after_post_ms", "goodput_gb_per_s"),
        *("pull_in_flight_ms", "post_in_flight_ms", "after_post_in_flight_ms"),
    }
    assert served["ttft_p50_one_at_a_time"] == served["itl_p50_in_flight"] == "median"
    assert served["extra_ttft_ms"] == "difference of medians"
    assert served["requests_per_s_in_flight"] == "rate"
    assert statistic_of(METRICS[0], is_served=False) == "median"
