"""Words, sentences, and the files of the verdict."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import design_data, planned, pull_rows, refused_outcome, write_cell, write_design

from kvroad.analysis import stats, tables, verdict
from kvroad.analysis.tables import DesignCell, DesignFile, parse_design
from kvroad.analysis.tables.metrics import METRICS
from kvroad.analysis.verdict import launches_needed, number, ratio_text, verdict_frame
from kvroad.analysis.verdict.sentences import refusal_text
from kvroad.analysis.words import interval

ROW = {
    "arm": "tcp",
    "baseline": "shm",
    "prompt_tokens": 4096,
    "metric": "pull_ms",
    "n_pairs": 4,
    "n_arm": 4,
    "n_baseline": 4,
    "ratio": 1.0,
    "ratio_low": 0.99,
    "ratio_high": 1.01,
    "difference": 0.0,
    "difference_low": -1.0,
    "difference_high": 1.0,
    "unit": "ms",
    "p_value": 0.5,
    "p_holm": 0.5,
    "sd": 0.01,
    "tested": "ratio",
    "n_comparisons": 3,
    "margin": 0.05,
    "same_low": 1 / 1.05,
    "same_high": 1.05,
    "is_interleaved": True,
    "baseline_value": 10.0,
    "arm_value": 10.0,
    "is_drifting": False,
    "outliers": "",
    "is_quantised": False,
    "is_uneven": False,
    "withheld": "",
    "note": "",
}
CELLS = pd.DataFrame(
    {
        "cell": ["a", "b"],
        "arm": ["shm", "tcp"],
        "prompt_tokens": [4096, 4096],
        "outcome": ["proven", "proven"],
        "reason": ["", ""],
        "road_expected": ["cma", "tcp"],
        "road_seen": ["cma", "tcp"],
        "where": ["", ""],
        "quote": ["", ""],
    }
)


def design() -> DesignFile:
    return parse_design(design_data(planned(["shm", "tcp"], [4096], 1)))


def judge(cells: pd.DataFrame = CELLS, **changes: Any) -> pd.Series[Any]:
    return verdict_frame(pd.DataFrame([ROW | changes]), cells, design()).iloc[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "same within 5 %"),
        ({"ratio_low": 1 / 1.05, "ratio_high": 1.05}, "same within 5 %"),
        ({"ratio_low": 0.952, "ratio_high": 1.04}, "inconclusive"),
        ({"is_interleaved": False}, "inconclusive"),
        # Inside the margin and yet clear of 1: the margin was declared not to matter.
        ({"ratio": 1.02, "ratio_low": 1.01, "ratio_high": 1.03, "p_holm": 1e-6}, "same within 5 %"),
        ({"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "p_holm": 0.01}, "slower"),
        ({"ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.9, "p_holm": 0.01}, "faster"),
        ({"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "p_holm": 0.06}, "inconclusive"),
        ({"ratio": 1.2, "ratio_low": 0.9, "ratio_high": 1.6, "p_holm": 0.01}, "inconclusive"),
        ({"ratio_low": math.nan, "ratio_high": math.nan, "sd": math.nan}, "inconclusive"),
        ({"margin": math.nan, "same_low": math.nan, "same_high": math.nan}, "inconclusive"),
        (
            {
                "metric": "goodput_gb_per_s",
                "ratio": 1.2,
                "ratio_low": 1.1,
                "ratio_high": 1.3,
                "p_holm": 0.01,
            },
            "faster",
        ),
    ],
)
def test_words_of_ratios(changes: dict[str, Any], word: str) -> None:
    assert judge(**changes)["verdict"] == word


@pytest.mark.parametrize(
    ("low", "high", "p_holm", "word"),
    [
        (-0.4, 0.4, 0.9, "same within 5 %"),
        (-0.6, 0.4, 0.9, "inconclusive"),
        (2.0, 3.0, 0.01, "slower"),
        (-3.0, -2.0, 0.01, "faster"),
    ],
)
def test_words_of_differences(low: float, high: float, p_holm: float, word: str) -> None:
    row = judge(
        metric="after_post_ms",
        tested="difference",
        ratio=math.nan,
        difference=(low + high) / 2,
        difference_low=low,
        difference_high=high,
        p_holm=p_holm,
        same_low=-0.5,
        same_high=0.5,
    )
    assert row["verdict"] == word


@pytest.mark.parametrize(
    ("outcome", "word"),
    [("refused", "refused"), ("failed", "not measured"), ("not measured", "not measured")],
)
def test_words_without_data(outcome: str, word: str) -> None:
    cells = CELLS.assign(outcome=["proven", outcome], reason=["", "saw tcp, not rc"])
    row = judge(cells, tested="none", ratio=math.nan, p_holm=math.nan)
    assert row["verdict"] == word
    assert "shm" not in row["sentence"].split(": ", 1)[1]
    assert ("saw tcp, not rc" in row["sentence"]) == (outcome != "not measured")


class TestLaunchesNeeded:
    def test_to_show_same_by_hand(self) -> None:
        # (1.95996 * 0.1 / log 1.05)^2 = 16.1 launches, the next even number is 18.
        assert launches_needed(ROW | {"sd": 0.1}, 0.05) == 18

    def test_to_show_a_difference_by_hand(self) -> None:
        # z(1 - 0.05 / 6) = 2.39398: (2.39398 * 0.4 / log 1.5)^2 = 5.58 launches.
        row = ROW | {"ratio": 1.5, "sd": 0.4}
        assert launches_needed(row, 0.05) == 6

    def test_is_even_and_more_than_now(self) -> None:
        assert launches_needed(ROW | {"sd": 1e-4}, 0.05) == 6
        assert launches_needed(ROW | {"sd": 1e-4, "n_arm": 5, "n_baseline": 5}, 0.05) == 6

    def test_of_a_difference(self) -> None:
        row = ROW | {"tested": "difference", "sd": 1.0, "same_high": 0.5}
        assert launches_needed(row, 0.05) == 16

    def test_is_unknown_without_spread_or_for_equal_arms_not_interleaved(self) -> None:
        assert launches_needed(ROW | {"sd": math.nan}, 0.05) is None
        assert launches_needed(ROW | {"is_interleaved": False}, 0.05) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.00x"), (0.0831, "0.0831x"), (17.34, "17.3x"), (486.2, "486x"), (2345.6, "2,346x")],
)
def test_ratio_text(value: float, text: str) -> None:
    assert ratio_text(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.1, 1.3, "1.10 to 1.30"),
        (1e-9, 3e10, "not bounded by these launches"),
        (1e-9, 30.0, "below 0.001 to 30.0"),
        (1234.0, 5678.0, "1.2e+03 to 5.7e+03"),
        (math.nan, math.nan, "no interval"),
    ],
)
def test_ratio_intervals_say_no_more_than_they_know(low: float, high: float, text: str) -> None:
    assert interval(ROW | {"ratio_low": low, "ratio_high": high}) == text


def test_number_of_zero() -> None:
    assert number(0.0) == "0"


def test_sentence_has_numbers_interval_and_word() -> None:
    row = judge(ratio=1.2, ratio_low=1.1, ratio_high=1.3, p_holm=0.01, arm_value=12.0)
    assert row["sentence"] == (
        "At 4,096 tokens, KV pull time over tcp is 1.20x that over shm (95 % interval 1.10 to 1.30;"
        " 12.0 ms against 10.0 ms; 4 paired launches): slower."
    )


def test_refusal_text_names_roads_and_place() -> None:
    cells = CELLS.assign(
        outcome=["proven", "refused"],
        reason=["", "wrong road (as in x; not launched again in this run)"],
        road_expected="rc_mlx5",
        road_seen="tcp",
        where="decode-0.log:41",
    )
    row = verdict.refusals(cells).iloc[0].to_dict()
    assert refusal_text(row) == (
        "tcp refused, 1 cell at 4,096 tokens: wrong road (decode-0.log:41)."
        " Road expected: rc_mlx5; seen: tcp."
    )


def times(cell: DesignCell, phase: str, pull: int) -> tuple[float, float]:
    xfer = 1000.0 * (10 + cell.block) * (3 if cell.arm == "tcp" else 1) * (1 + pull / 100)
    # A third prompt-dependent digit keeps the launches from being equal in log ratio.
    xfer *= 1 + 0.001 * ((cell.block * 7 + cell.prompt_tokens // 4096) % 5)
    return (0.1 * xfer if cell.arm == "tcp" else xfer), xfer


def build(folder: Path, arms: list[str], refused: set[str], **changes: Any) -> Path:
    cells = planned(arms, [4096, 8192, 16384], 4)
    for position, cell in enumerate(cells):
        result = refused_outcome() if cell.arm in refused else None
        write_cell(folder, cell, pull_rows(cell, times, 3), order=position, result=result)
    path = write_design(folder / "design.json", cells, **changes)
    tables.build(path, folder, folder)
    stats.build(folder / "cells.parquet", path, folder)
    verdict.build(folder / "contrasts.parquet", folder / "cells.parquet", path, folder / "out")
    return folder / "out"


def test_default_study_has_its_nine_rows_in_order(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], set())
    frame = pd.read_csv(out / "verdict.csv")
    main = frame[frame["metric"].isin([m.name for m in tables.MAIN_METRICS])]
    assert list(zip(main["metric"], main["prompt_tokens"], strict=True)) == [
        (m, t) for m in ("pull_ms", "post_ms", "after_post_ms") for t in (4096, 8192, 16384)
    ]
    assert main["verdict"].tolist() == ["slower"] * 3 + ["faster"] * 3 + ["slower"] * 3
    text = (out / "verdict.md").read_text()
    assert text.split("\n")[2].startswith("A KV pull over tcp takes 3.00 times as long as over shm")
    assert ": slower at every prompt length." in text


def test_only_lengths_of_both_arms_are_compared(tmp_path: Path) -> None:
    cells = [
        c
        for c in planned(["shm", "tcp"], [4096, 8192], 4)
        if c.arm == "shm" or c.prompt_tokens == 4096
    ]
    for position, cell in enumerate(cells):
        write_cell(tmp_path, cell, pull_rows(cell, times, 3), order=position)
    path = write_design(tmp_path / "design.json", cells)
    tables.build(path, tmp_path, tmp_path)
    stats.build(tmp_path / "cells.parquet", path, tmp_path)
    out = tmp_path / "out"
    verdict.build(tmp_path / "contrasts.parquet", tmp_path / "cells.parquet", path, out)
    frame = pd.read_csv(out / "verdict.csv")
    assert set(frame["prompt_tokens"]) == {4096}
    line = next(x for x in (out / "verdict.md").read_text().splitlines() if x.startswith("| tcp"))
    assert line.endswith("| not planned |")


def test_json_is_plain_and_versioned(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], set(), overrides=["workload.pulls=3"])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    data = json.loads((out / "verdict.json").read_text(), parse_constant=refuse)
    assert data["schema"] == "kvroad.verdict/1"
    assert data["cells"] == {"proven": 24}
    assert data["overrides"] == ["workload.pulls=3"]
    assert len(data["rows"]) == 3 * len([m for m in METRICS if m.of_pulls])
    assert data["rows"][0]["n_pairs"] == 4
    assert data["rows"][0]["launches_needed"] is None
    assert data["quoted"] is None


def test_refused_arm_is_shown_with_the_road_seen(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp", "roce"], {"roce"})
    text = (out / "verdict.md").read_text()
    assert "| roce | refused | refused | refused |" in text
    assert "Road expected: rc_mlx5, rc_verbs; seen: tcp." in text
    assert "No number for roce against shm: roce was refused: the protocol table shows" in text
    assert "24 of 36 cells proven" in text
    data = json.loads((out / "verdict.json").read_text())
    assert data["refused"][0]["n_cells"] == 12
    assert data["refused"][0]["prompt_tokens"] == [4096, 8192, 16384]


def test_refused_baseline_leaves_no_ratio(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], {"shm"})
    assert set(pd.read_csv(out / "verdict.csv")["verdict"]) == {"refused"}
    assert "| shm (baseline) | no value |" in (out / "verdict.md").read_text()


def test_quoted_ratios_stand_beside_ours_and_are_marked(tmp_path: Path) -> None:
    quoted = {
        "source": "a blog post",
        "arm": "roce",
        "baseline": "nvlink",
        "ratios": {"pull_ms": {"4096": 0.66, "16384": 0.73}},
    }
    claims = {"alpha": 0.05, "margins": {"pull_ms": 0.05}, "quoted": quoted}
    out = build(tmp_path, ["shm", "tcp"], set(), claims=claims)
    text = (out / "verdict.md").read_text()
    line = "| roce against nvlink, quoted | 0.66x quoted | not published | 0.73x quoted |"
    assert text.count(line) == 1
    assert "Quoted: a blog post. Quoted numbers were not measured here." in text
    assert json.loads((out / "verdict.json").read_text())["quoted"]["ratios"] == {
        "pull_ms": {"4096": 0.66, "16384": 0.73}
    }


def test_one_arm_alone_has_values_and_no_ratio(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm"], set())
    text = (out / "verdict.md").read_text()
    assert "A KV pull over shm takes " in text
    assert "no arm to compare it with" in text
    assert json.loads((out / "verdict.json").read_text())["rows"] == []


def test_one_refused_arm_alone_says_so(tmp_path: Path) -> None:
    out = build(tmp_path, ["roce"], {"roce"})
    assert "No number for roce: roce was refused" in (out / "verdict.md").read_text()


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 2)
    path = write_design(tmp_path / "design.json", cells)
    tables.build(path, tmp_path, tmp_path)
    stats.build(tmp_path / "cells.parquet", path, tmp_path)
    out = tmp_path / "out"
    verdict.build(tmp_path / "contrasts.parquet", tmp_path / "cells.parquet", path, out)
    assert set(pd.read_csv(out / "verdict.csv")["verdict"]) == {"not measured"}
    assert (
        "No number for tcp against shm: tcp has no cell measured."
        in (out / "verdict.md").read_text()
    )
