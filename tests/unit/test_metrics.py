"""A metric is declared in one file; the columns of the tables that others read are fixed."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from served import Load, write_served
from synthetic import planned, pull_rows, write_cell, write_design

from kvroad.analysis import stats, tables, verdict
from kvroad.analysis.tables import METRICS, margin, metric
from kvroad.errors import UserError

PACKAGE = Path(tables.__file__).parents[2]
DECLARED_IN = "src/kvroad/analysis/tables/metrics/slowest.py"
# The file that the page of additions shows, which it says is all there is to do.
(TOY,) = re.findall(
    rf"^`{DECLARED_IN}`\n\n```python\n(.*?)^```$",
    (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE | re.DOTALL,
)

# In their order, with a space between.
PLANNED = (
    "study cell launch arm transport variant prompt_tokens block host session outcome "
    "reason road_expected road_seen where quote measured_at boot_id run_id nixl_version "
    "ucx_version ucx_tls environment operation gpus attempt descriptors descriptor_bytes "
    "pull_bytes executed_order"
)
REPLAY_COLUMNS = (
    f"{PLANNED} n_pulls n_dropped n_warmup statistic pull_ms pull_ms_grid post_ms post_ms_grid "
    "after_post_ms after_post_ms_grid pull_in_flight_ms pull_in_flight_ms_grid "
    "post_in_flight_ms post_in_flight_ms_grid after_post_in_flight_ms "
    "after_post_in_flight_ms_grid goodput_gb_per_s"
)
SERVED_COLUMNS = (
    f"{PLANNED} statistic pull_ms post_ms after_post_ms pull_in_flight_ms post_in_flight_ms "
    "after_post_in_flight_ms goodput_gb_per_s ttft_p50_one_at_a_time extra_ttft_ms "
    "requests_per_s_in_flight itl_p50_one_at_a_time ttft_p50_in_flight itl_p50_in_flight "
    "n_pulls n_dropped n_warmup n_requests n_failed_requests descriptors_moved bytes_moved "
    "descriptors_moved_in_flight bytes_moved_in_flight pull_in_flight_ms_step "
    "after_post_in_flight_ms_step prompts engine_version cache_check"
)
VERDICT_COLUMNS = (
    "arm baseline prompt_tokens metric phase n_pairs n_arm n_baseline ratio ratio_low "
    "ratio_high difference difference_low difference_high unit p_value p_holm df sd tested "
    "n_comparisons margin same_low same_high is_interleaved statistic baseline_value "
    "arm_value drift drift_low drift_high is_drifting n_outliers outliers grid is_quantised "
    "is_uneven hosts is_host_dependent withheld note verdict launches_needed sentence"
)


def write_replay(folder: Path) -> Path:
    """Write two blocks of two arms; the last of three pulls takes longest."""
    cells = planned(["shm", "tcp"], [4096], 2)
    for order, cell in enumerate(cells):
        rows = pull_rows(cell, lambda c, phase, pull: (500.0, 1000.123 * (1 + pull)), 3)
        write_cell(folder, cell, rows, order=order)
    return write_design(folder / "design.json", cells)


def write_serving(folder: Path) -> Path:
    cells = planned(["tcp", "none"], [4096], 2)
    for order, cell in enumerate(cells):
        pulls = Load(3, 0.3, 0.1, 3e9, 3000, requests=[(0, 1, 2), (2, 3.5, 4), (4, 5, None)])
        alone = Load(requests=[(0, 0.5, 2), (2, 2.5, 4)])
        load = alone if cell.transport == "none" else pulls
        write_served(folder, cell, {"one_at_a_time": load, "in_flight": load}, order=order)
    return write_design(folder / "design.json", cells, engine="vllm")


def build(folder: Path, design: Path) -> None:
    """Run the chain from cell folders to the verdict with the modules that are in place now."""
    module = importlib.import_module
    module("kvroad.analysis.tables").build(design, folder, folder)
    module("kvroad.analysis.stats").build(folder / "cells.parquet", design, folder)
    contrasts, cells = folder / "contrasts.parquet", folder / "cells.parquet"
    module("kvroad.analysis.verdict").build(contrasts, cells, design, folder)


@pytest.fixture
def copied_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that imports find in place of the installed one."""
    copy = tmp_path / "src" / "kvroad"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def forget() -> dict[str, object]:
        names = [name for name in sys.modules if name.partition(".")[0] == "kvroad"]
        return {name: sys.modules.pop(name) for name in names}

    installed = forget()
    monkeypatch.syspath_prepend(str(copy.parent))
    yield copy
    forget()
    sys.modules.update(installed)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_git")
def test_a_new_metric_is_a_new_file(copied_package: Path, tmp_path: Path) -> None:
    (copied_package.parents[1] / DECLARED_IN).write_text(TOY)
    replay, served = tmp_path / "replay", tmp_path / "served"
    build(replay, write_replay(replay))
    build(served, write_serving(served))

    cells = pd.read_csv(replay / "cells.csv")
    toys = "slowest_pull_ms slowest_pull_ms_grid"
    assert " ".join(cells.columns) == f"{REPLAY_COLUMNS} {toys}"
    assert (cells["slowest_pull_ms"] == 3.000369).all()
    rows = pd.read_csv(replay / "verdict.csv").set_index("metric")
    assert rows.index[-1] == "slowest_pull_ms"
    assert rows.loc["slowest_pull_ms", "verdict"] == "same within 25 %"
    assert rows.loc["slowest_pull_ms", "statistic"] == "max"
    assert "## Slowest pull (less is faster)" in (replay / "verdict.md").read_text()
    assert {row["metric"] for row in json.loads((replay / "verdict.json").read_text())["rows"]} == {
        *rows.index
    }

    cells = pd.read_csv(served / "cells.csv").set_index("arm")
    assert cells.loc["tcp", "longest_ttft_ms"].tolist() == [1500.0, 1500.0]
    assert "slowest_pull_ms" not in cells
    assert "longest_ttft_ms" in set(pd.read_csv(served / "verdict.csv")["metric"])

    runs = importlib.import_module("kvroad.publish.tracking.study_runs")
    records = runs.read_records(replay / "design.json", replay, replay, replay, tmp_path)
    assert all(cell.metrics["slowest_pull_ms/max"] == 3.000369 for cell in records.cells)


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown metric 'pul_ms'; did you mean 'pull_ms'\?"):
        metric("pul_ms")


def test_a_margin_is_the_claims_by_name_then_by_key_then_the_metrics_own() -> None:
    in_flight = metric("pull_in_flight_ms")
    assert margin({"pull_in_flight_ms": 0.02, "pull_ms": 0.03}, in_flight) == 0.02
    assert margin({"pull_ms": 0.03}, in_flight) == 0.03
    assert all(pd.isna(margin({}, declared)) for declared in METRICS)


def test_columns_that_others_read(tmp_path: Path) -> None:
    for name, write, columns in (
        ("replay", write_replay, REPLAY_COLUMNS),
        ("served", write_serving, SERVED_COLUMNS),
    ):
        folder = tmp_path / name
        build(folder, write(folder))
        assert " ".join(pd.read_csv(folder / "cells.csv").columns) == columns
        assert " ".join(pd.read_csv(folder / "verdict.csv").columns) == VERDICT_COLUMNS


def test_doors_that_others_call_are_there() -> None:
    assert stats.contrasts_frame.__module__ == "kvroad.analysis.stats.contrasts"
    assert verdict.verdict_frame.__module__ == "kvroad.analysis.verdict.words"
