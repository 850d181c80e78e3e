"""Figures draw what the tables hold, say what they cannot show, and are the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import planned, pull_rows, refused_outcome, write_cell, write_design

from kvroad.analysis import cost_model, stats, tables, verdict
from kvroad.analysis.tables import DesignCell
from kvroad.publish import figures


def times(cell: DesignCell, phase: str, pull: int) -> tuple[float, float]:
    xfer = 1000.0 * (10 + cell.block) * (20 if cell.arm == "tcp" else 1)
    return xfer / 2, xfer


def build(
    folder: Path, proven: list[str], refused: list[str], blocks: int = 4, **design: object
) -> Path:
    cells = planned([*proven, *refused], [4096, 8192], blocks)
    for position, cell in enumerate(cells):
        result = refused_outcome() if cell.arm in refused else None
        write_cell(folder, cell, pull_rows(cell, times, 2), order=position, result=result)
    path = write_design(folder / "design.json", cells, **design)
    tables.build(path, folder, folder)
    stats.build(folder / "cells.parquet", path, folder)
    cost_model.build(folder / "cells.parquet", path, folder)
    verdict.build(folder / "contrasts.parquet", folder / "cells.parquet", path, folder)
    figures.build(
        folder / "cells.parquet",
        folder / "launch_summary.parquet",
        folder / "verdict.parquet",
        folder,
        path,
        folder / "figures",
        folder / "figures.json",
    )
    return folder / "figures"


def left_out(folder: Path) -> dict[str, str]:
    """Return why each picture is not there, empty where it is."""
    return {p["name"]: p["left_out"] for p in json.loads((folder / "figures.json").read_text())}


@pytest.fixture(scope="module")
def quoted_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study of two arms that quotes a ratio."""
    folder = tmp_path_factory.mktemp("quoted")
    quoted = {"source": "a blog", "arm": "roce", "baseline": "nvlink"}
    quoted |= {"ratios": {"pull_ms": {4096: 0.66}}}
    claims = {"alpha": 0.05, "margins": {"pull_ms": 0.05}, "quoted": quoted}
    build(folder, ["shm", "tcp"], [], claims=claims)
    return folder


@pytest.fixture(scope="module")
def refused_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study of two proven arms and a refused one."""
    folder = tmp_path_factory.mktemp("refused")
    build(folder, ["shm", "tcp"], ["roce"])
    return folder


def test_each_figure_has_svg_png_and_its_data(quoted_study: Path) -> None:
    out = quoted_study / "figures"
    drawn = ("launches", "post_split", "pull_time", "ratios")
    names = [f"{n}.{s}" for n in drawn for s in ("csv", "png", "svg")]
    assert sorted(p.name for p in out.iterdir()) == names
    assert (out / "pull_time.png").read_bytes().startswith(b"\x89PNG")


def test_pull_time_data_are_the_tables(refused_study: Path) -> None:
    data = pd.read_csv(refused_study / "figures" / "pull_time.csv")
    launches = data[data["kind"] == "launch"]
    cells = pd.read_parquet(refused_study / "cells.parquet").query("outcome == 'proven'")
    assert launches["value_ms"].tolist() == cells["pull_ms"].tolist()
    summary = pd.read_parquet(refused_study / "launch_summary.parquet")
    summary = summary.query("metric == 'pull_ms'")
    means = data[data["kind"] == "interval"]
    assert means["low_ms"].tolist() == pytest.approx(summary["low"].tolist())
    assert means["n_launches"].tolist() == [4] * 4


def test_pull_time_names_units_sizes_and_refused_arms(refused_study: Path) -> None:
    svg = (refused_study / "figures" / "pull_time.svg").read_text()
    for text in (
        "KV pull time (ms, log scale)",
        "prompt length (tokens)",
        "(n = 4 launches)",
        "8,192",
        "95 % t",
        "No numbers from 8 refused cells of roce (road expected rc_mlx5, rc_verbs, seen tcp)",
    ):
        assert text in svg, text


def test_post_split_is_of_the_longest_prompt(quoted_study: Path) -> None:
    out = quoted_study / "figures"
    data = pd.read_csv(out / "post_split.csv")
    assert data["arm"].tolist() == ["shm", "tcp"]
    assert set(data["prompt_tokens"]) == {8192}
    assert data["post_ms"].tolist() == pytest.approx((data["pull_ms"] / 2).tolist())
    svg = (out / "post_split.svg").read_text()
    assert "One KV pull at 8,192 tokens" in svg
    assert "time (ms)" in svg


def test_a_picture_with_nothing_to_show_has_no_file_but_a_reason(tmp_path: Path) -> None:
    out = build(tmp_path, [], ["roce"])
    assert list(out.iterdir()) == []
    reasons = left_out(tmp_path)
    for name in ("pull_time", "post_split", "rate", "launches"):
        assert "there is no number to draw" in reasons[name]
    assert reasons["ratios"] == "the study has one arm, so there is nothing to compare it with"
    assert "the arm none (serving without a transfer) was not run" in reasons["extra_ttft"]


def test_ratios_are_the_verdict_with_quoted_ones_hollow(quoted_study: Path) -> None:
    out = quoted_study / "figures"
    data = pd.read_csv(out / "ratios.csv")
    judged = pd.read_parquet(quoted_study / "verdict.parquet").query("metric == 'pull_ms'")
    ours = data[data["kind"] == "measured"]
    assert ours["ratio"].tolist() == pytest.approx(judged["ratio"].tolist())
    assert ours["verdict"].tolist() == judged["verdict"].tolist()
    assert data.loc[data["kind"] == "quoted", "ratio"].tolist() == [0.66]
    svg = (out / "ratios.svg").read_text()
    for text in ("0.66x quoted", "20.0x slower", "ratio to shm or nvlink (log scale)"):
        assert text in svg, text


def test_extra_ttft_marks_what_is_quoted_and_what_its_source_measured(tmp_path: Path) -> None:
    rows = [
        {"road": "RoCE", "low": 300, "high": 800, "is_measured": False},
        {"road": "TCP", "low": 90000, "high": 100000, "is_measured": True},
    ]
    quoted = {"source": "a blog", "arm": "roce", "baseline": "nvlink", "ratios": {}}
    quoted |= {"guide": {"source": "a guide", "extra_ttft_ms": rows}}
    out = build(tmp_path, ["shm"], [], claims={"alpha": 0.05, "margins": {}, "quoted": quoted})
    data = pd.read_csv(out / "extra_ttft.csv")
    assert data["kind"].tolist() == [
        "quoted, an estimate of its source",
        "quoted, its source calls it measured",
    ]
    assert data["source"].tolist() == ["a guide"] * 2
    svg = (out / "extra_ttft.svg").read_text()
    assert "log scale" in svg
    assert "the arm none (serving without a transfer) was not run" in " ".join(svg.split())


def test_launches_are_drawn_in_executed_order(refused_study: Path) -> None:
    data = pd.read_csv(refused_study / "figures" / "launches.csv")
    assert data["executed_order"].tolist() == sorted(data["executed_order"])
    assert len(data) == 24
    assert data.loc[data["arm"] == "roce", "relative"].isna().all()
    proven = data[data["outcome"] == "proven"]
    for _, own in proven.groupby(["arm", "prompt_tokens"]):
        assert own["relative"].product() == pytest.approx(1.0)


def test_single_launch_is_drawn_without_an_interval(tmp_path: Path) -> None:
    data = pd.read_csv(build(tmp_path, ["shm"], [], blocks=1) / "pull_time.csv")
    means = data[data["kind"] == "interval"]
    assert means["value_ms"].tolist() == pytest.approx([10.0, 10.0])
    assert means["low_ms"].isna().all()


def test_equal_data_give_equal_files(refused_study: Path, tmp_path: Path) -> None:
    again = build(tmp_path, ["shm", "tcp"], ["roce"])
    for file in ("pull_time.svg", "ratios.svg", "launches.svg", "pull_time.png"):
        assert (again / file).read_bytes() == (refused_study / "figures" / file).read_bytes()
