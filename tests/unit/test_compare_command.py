"""`kvroad compare`: an A/A pair from published cells, a slowed one, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import REPOSITORY, kvroad

from kvroad.analysis.saved_study import find_study

PUBLISHED = REPOSITORY / "reports/published"
TIMES = ["pull_ms", "post_ms", "after_post_ms", "pull_in_flight_ms"]

Change = Callable[[pd.DataFrame], pd.DataFrame]


def save(
    folder: Path, name: str, change: Change, source: str = "h200_nvlink", **settings: Any
) -> str:
    """Write a copy of a published study; dotted keys of ``settings`` have ``__`` for a dot."""
    target = folder / name
    target.mkdir()
    cells = pd.read_csv(PUBLISHED / source / "cells.csv")
    cells["measured_at"] = f"2026-12-01T00:00:00Z {name}"
    change(cells).to_csv(target / "cells.csv", index=False)
    study = json.loads((PUBLISHED / source / "study.json").read_text())
    for path, value in settings.items():
        section, _, key = path.partition("__")
        study[section][key] = value
    (target / "study.json").write_text(json.dumps(study))
    return str(target)


def same(cells: pd.DataFrame) -> pd.DataFrame:
    return cells


def two_arms(cells: pd.DataFrame) -> pd.DataFrame:
    return cells[cells["arm"].isin(["nvlink", "nvlink+push"])]


def steady(factor: float, seed: int, launches: int = 10) -> Change:
    """Return a change to steady launches: the first one's values with a spread of 1 %."""

    def change(cells: pd.DataFrame) -> pd.DataFrame:
        first = cells[(cells["block"] == 0) & (cells["arm"] == "nvlink")]
        random = np.random.default_rng(seed)
        parts = []
        for block in range(launches):
            noise = np.exp(random.normal(0, 0.01, len(first)))
            times = first[TIMES].mul(noise * factor, axis=0)
            cell = [f"{name}-{block}" for name in first["cell"]]
            parts.append(first.assign(block=block, cell=cell).assign(**times))
        return pd.concat(parts)

    return change


def arm_of_aa(arm: str) -> Change:
    def change(cells: pd.DataFrame) -> pd.DataFrame:
        own = cells[cells["arm"] == arm]
        return own.assign(arm="shm", variant="blocks")

    return change


def test_a_a_of_published_launches_shows_no_regression(tmp_path: Path) -> None:
    # The A/A study's two arms are one arm measured twice, launch by launch.
    a = save(tmp_path, "a", arm_of_aa("shm"), "aa")
    b = save(tmp_path, "b", arm_of_aa("shm+again"), "aa")
    done = kvroad("compare", a, b)
    assert (done.status, "INCONCLUSIVE: no regression is shown" in done.out) == (3, True)
    passed = kvroad("compare", a, b, "--pass-inconclusive", "--json")
    assert (passed.status, passed.data["result"]) == (0, "open")
    rows = passed.data["rows"]
    assert {row["gate"] for row in rows} <= {"open", "none beyond margin"}
    assert {row["verdict"] for row in rows} == {"inconclusive"}


def test_a_a_of_steady_launches_rules_a_regression_out(tmp_path: Path) -> None:
    a, b = (save(tmp_path, n, steady(1.0, s)) for n, s in (("a", 1), ("b", 2)))
    done = kvroad("compare", a, b)
    assert done.status == 0, done.out
    assert "NO REGRESSION: all 6 comparisons rule out more than 5 %" in done.out
    assert "same within" not in done.out, "runs that were not interleaved are never the same"


def test_a_slowed_study_is_a_regression_and_a_faster_one_is_not(tmp_path: Path) -> None:
    a, b = save(tmp_path, "a", steady(1.0, 1)), save(tmp_path, "b", steady(1.12, 2))
    slowed = kvroad("compare", a, b)
    assert (slowed.status, slowed.out.count("slower")) == (1, 6)
    assert "REGRESSION in 6 of 6 comparisons: pull_ms of nvlink at 4,096 in b" in slowed.out
    again = kvroad("compare", a, b, "--pass-inconclusive", "--json")
    assert again.status == 1
    row = again.data["rows"][0]
    assert row["ratio_low"] < 1.12 < row["ratio_high"]
    assert row["ratio_low"] > 1.05
    assert kvroad("compare", b, a).status == 0


def test_a_road_that_is_not_proven_any_more_never_passes(tmp_path: Path) -> None:
    def refused(cells: pd.DataFrame) -> pd.DataFrame:
        is_lost = (cells["arm"] == "nvlink+push") & (cells["prompt_tokens"] == 8192)
        cells.loc[is_lost, "outcome"] = "refused"
        cells.loc[is_lost, TIMES] = np.nan
        return two_arms(cells)

    a, b = save(tmp_path, "a", two_arms), save(tmp_path, "b", refused)
    done = kvroad("compare", a, b, "--pass-inconclusive", "--json")
    assert (done.status, done.data["result"]) == (3, "open")
    assert done.data["lost_roads"] == ["nvlink+push at 8,192 in b (refused)"]
    told = kvroad("compare", a, b).out.splitlines()[-1]
    assert told.endswith("; ROAD NOT PROVEN any more: nvlink+push at 8,192 in b (refused)")
    # The other way round nothing is lost: the reference never had it.
    assert kvroad("compare", b, a, "--pass-inconclusive").status == 0


def test_slower_by_less_than_the_margin_is_none(tmp_path: Path) -> None:
    a, b = save(tmp_path, "a", steady(1.0, 1)), save(tmp_path, "b", steady(1.02, 2))
    done = kvroad("compare", a, b)
    assert (done.status, "slower" in done.out) == (0, True)


def test_a_rate_that_falls_is_a_regression(tmp_path: Path) -> None:
    def halved(cells: pd.DataFrame) -> pd.DataFrame:
        changed = steady(1.0, 2)(cells)
        return changed.assign(goodput_gb_per_s=changed["goodput_gb_per_s"] / 2)

    a, b = save(tmp_path, "a", steady(1.0, 1)), save(tmp_path, "b", halved)
    assert kvroad("compare", a, b, "--metrics", "goodput_gb_per_s").status == 1
    assert kvroad("compare", b, a, "--metrics", "goodput_gb_per_s").status == 0


def test_holm_is_over_all_comparisons_of_a_metric(tmp_path: Path) -> None:
    words = [save(tmp_path, n, steady(1.0, s)) for n, s in (("a", 1), ("b", 2), ("c", 3))]
    rows = kvroad("compare", *words, "--json").data["rows"]
    assert {row["study"] for row in rows} == {"b", "c"}
    assert {row["n_comparisons"] for row in rows} == {6}
    assert not any(row["is_interleaved"] for row in rows)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model__head_dim": 64}, "the models differ (shapes of the cache)"),
        ({"model__name": "other"}, "the models differ (other against gemma-4-31b-it)"),
        ({"engine__tensor_parallel_size": 8}, "engine.tensor_parallel_size differs (8 against 4)"),
        ({"workload__block_tokens": 16}, "workload.block_tokens differs (16 against 64)"),
        ({"host__name": "elsewhere"}, "host.name differs (elsewhere against h200_x2)"),
    ],
)
def test_what_is_not_pooled(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    a = save(tmp_path, "a", two_arms)
    b = save(tmp_path, "b", two_arms, **settings)
    done = kvroad("compare", a, b)
    assert (done.status, said in done.out) == (4, True), done.out
    assert "NOTHING COMPARED" in done.out
    if "host__name" in settings:
        assert kvroad("compare", a, b, "--across-hosts").status == 3


def test_another_concurrency_leaves_the_pulls_one_at_a_time(tmp_path: Path) -> None:
    a = save(tmp_path, "a", steady(1.0, 1))
    b = save(tmp_path, "b", steady(1.0, 2), workload__concurrency=30)
    data = kvroad("compare", a, b, "--json").data
    assert {row["metric"] for row in data["rows"]} == {"pull_ms"}
    assert "workload.concurrency differs (30 against 4)" in data["refused"][0]
    assert data["result"] == "open", "what was not compared is not passed"


def test_arms_that_are_not_one_arm(tmp_path: Path) -> None:
    def written(cells: pd.DataFrame) -> pd.DataFrame:
        cells.loc[cells["arm"] == "nvlink", "operation"] = "write"
        cells.loc[cells["arm"] == "nvlink+push_sgl", "descriptors"] = 7
        return cells[cells["arm"] != "nvlink+push"]

    a, b = save(tmp_path, "a", same), save(tmp_path, "b", written)
    data = kvroad("compare", a, b, "--json").data
    assert "b against a, arm nvlink: operation differs (write against read)" in data["refused"]
    assert any("descriptors 7 against" in text for text in data["refused"])
    assert "b against a: no arm nvlink+push in it" in data["refused"]
    labels = {row["label"] for row in data["rows"]}
    assert labels == {"nvlink+threads0", "nvlink+regions8"}


def test_the_same_measurements_are_no_second_study(tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED / "h200_nvlink", tmp_path / "copy")
    done = kvroad("compare", "h200_nvlink", str(tmp_path / "copy"))
    assert done.status == 4
    assert "12 of its cells are the very same measurements in both" in done.out


def test_differences_of_versions_environment_and_host_are_told(tmp_path: Path) -> None:
    def newer(cells: pd.DataFrame) -> pd.DataFrame:
        cells["environment"] = cells["environment"].str.replace('"lo"', '"eth0"')
        return two_arms(cells).assign(nixl_version="1.9.9")

    a = save(tmp_path, "a", two_arms)
    b = save(tmp_path, "b", newer, engine__num_threads=8)
    (tmp_path / "a" / "provenance.json").write_text('{"kernel": [{"value": "6.1", "cells": 1}]}')
    shutil.copy(PUBLISHED / "h200_nvlink" / "raw.tar.xz", tmp_path / "b")
    found = {d["what"]: d for d in kvroad("compare", a, b, "--json").data["differences"]}
    assert found["nixl_version"]["other"] == "1.9.9"
    assert found["engine.num_threads"]["reference"] == "4"
    assert found["nvlink: UCX_NET_DEVICES"]["other"] == "eth0"
    assert found["kernel"]["reference"] == "6.1"
    assert found["kernel"]["other"] not in ("6.1", "none")


def test_names_and_folders(tmp_path: Path) -> None:
    assert find_study("aa", REPOSITORY / "reports", tmp_path).folder == PUBLISHED / "aa"
    for place in ("results/studies/aa", "reports/aa"):
        shutil.copytree(PUBLISHED / "aa", tmp_path / place)
        assert find_study("aa", tmp_path / "reports", tmp_path / "results").folder == (
            tmp_path / place
        )
    own, published = tmp_path / "reports", PUBLISHED / "aa"
    assert find_study(str(published), own, tmp_path / "results").folder == published
    (tmp_path / "empty").mkdir()
    for words, said in (
        (["aa"], "name two studies or more"),
        (["aa", "aa"], "is named twice"),
        (["aa", "bb"], "no study 'bb'"),
        (["aa", str(tmp_path / "empty")], "a folder without cells.csv"),
        (["aa", "soft_roce", "--metrics", "pull"], "did you mean 'pull_ms'?"),
    ):
        done = kvroad("compare", *words)
        assert (done.status, done.out) == (2, ""), words
        assert said in done.err
