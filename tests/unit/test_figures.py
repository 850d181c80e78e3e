"""Figures draw what the tables hold, say what they cannot show, and are the same each time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from synthetic import planned, pull_rows, refused_outcome, write_cell, write_design

from kvroad import cost_model, figures, stats, tables
from kvroad.tables import PlannedCell


def times(cell: PlannedCell, phase: str, pull: int) -> tuple[float, float]:
    xfer = 1000.0 * (10 + cell.block) * (20 if cell.arm == "tcp" else 1)
    return xfer / 2, xfer


def build(folder: Path, proven: list[str], refused: list[str], blocks: int = 4) -> Path:
    cells = planned([*proven, *refused], [4096, 8192], blocks)
    for position, cell in enumerate(cells):
        result = refused_outcome() if cell.arm in refused else None
        write_cell(folder, cell, pull_rows(cell, times, 2), order=position, result=result)
    path = write_design(folder / "design.json", cells)
    tables.build(path, folder, folder)
    stats.build(folder / "cells.parquet", path, folder)
    cost_model.build(folder / "cells.parquet", path, folder)
    summary = folder / "launch_summary.parquet"
    figures.build(folder / "cells.parquet", summary, path, folder, folder / "figures")
    return folder / "figures"


def test_each_figure_has_svg_png_and_its_data(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], [])
    names = [f"{n}.{s}" for n in ("post_split", "pull_time", "rate") for s in ("csv", "png", "svg")]
    assert sorted(p.name for p in out.iterdir()) == names
    assert (out / "pull_time.png").read_bytes().startswith(b"\x89PNG")


def test_pull_time_data_are_the_tables(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], ["roce"])
    data = pd.read_csv(out / "pull_time.csv")
    launches = data[data["kind"] == "launch"]
    cells = pd.read_parquet(tmp_path / "cells.parquet").query("outcome == 'proven'")
    assert launches["value_ms"].tolist() == cells["pull_ms"].tolist()
    summary = pd.read_parquet(tmp_path / "launch_summary.parquet").query("metric == 'pull_ms'")
    means = data[data["kind"] == "interval"]
    assert means["low_ms"].tolist() == pytest.approx(summary["low"].tolist())
    assert means["n_launches"].tolist() == [4] * 4


def test_pull_time_names_units_sizes_and_refused_arms(tmp_path: Path) -> None:
    svg = (build(tmp_path, ["shm", "tcp"], ["roce"]) / "pull_time.svg").read_text()
    for text in (
        "KV pull time (ms, log scale)",
        "prompt length (tokens)",
        "(n = 4 launches)",
        "8,192",
        "95 % t",
        "No numbers from 8 refused cells of roce (road expected rc_mlx5, rc_verbs, seen tcp)",
    ):
        assert text in svg, text


def test_post_split_is_of_the_longest_prompt(tmp_path: Path) -> None:
    out = build(tmp_path, ["shm", "tcp"], [])
    data = pd.read_csv(out / "post_split.csv")
    assert data["arm"].tolist() == ["shm", "tcp"]
    assert set(data["prompt_tokens"]) == {8192}
    assert data["post_ms"].tolist() == pytest.approx((data["pull_ms"] / 2).tolist())
    svg = (out / "post_split.svg").read_text()
    assert "One KV pull at 8,192 tokens" in svg
    assert "time (ms)" in svg


def test_nothing_proven_is_said_in_the_figure(tmp_path: Path) -> None:
    out = build(tmp_path, [], ["roce"])
    for name in ("pull_time", "post_split", "rate"):
        assert "there is no number to draw" in (out / f"{name}.svg").read_text()
        assert len(pd.read_csv(out / f"{name}.csv")) == 0


def test_single_launch_is_drawn_without_an_interval(tmp_path: Path) -> None:
    data = pd.read_csv(build(tmp_path, ["shm"], [], blocks=1) / "pull_time.csv")
    means = data[data["kind"] == "interval"]
    assert means["value_ms"].tolist() == pytest.approx([10.0, 10.0])
    assert means["low_ms"].isna().all()


def test_equal_data_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(tmp_path / name, ["shm", "tcp"], ["roce"])
    for file in ("pull_time.svg", "post_split.svg", "rate.svg", "pull_time.png"):
        first, second = (tmp_path / name / "figures" / file for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
