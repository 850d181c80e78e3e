"""A study of serving engines with known truth, from cell folders to verdict, figures and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from jsonschema import Draft202012Validator
from served import Load, write_served
from synthetic import planned, write_design

from kvroad.analysis import cost_model, stats, tables, verdict
from kvroad.analysis.cost_model import as_moved
from kvroad.analysis.tables import DesignCell
from kvroad.analysis.verdict import claims
from kvroad.publish import figures
from kvroad.publish import page as report
from kvroad.publish.tracking.study_runs import read_records

ROOT = Path(__file__).parents[2]
ARMS = ["nvlink", "roce", "nvlink+b16", "none"]
PROMPTS = [4096, 16384]
BLOCKS = 4
# Of a pull in blocks of 64 tokens; NIXL merges them to four in five, not those of 16 tokens.
PIECES = {4096: 2000, 16384: 8000}
PIECE_BYTES = 131072
MERGED = 0.8
# Microseconds: of a start, a descriptor and a byte.
COST = {"nvlink": (100.0, 2.5, 1 / 50e3), "roce": (200.0, 0.2, 1 / 30e3)}
# What pulling adds to a time to first token, in ms.
EXTRA = {"nvlink": 40.0, "roce": 25.0, "nvlink+b16": 60.0, "none": 0.0}
WOBBLE = [0.0, 0.02, -0.02, 0.01]
GUIDE = [
    {"road": "RoCE", "low": 300, "high": 800, "is_measured": False},
    {"road": "NVLink", "low": 200, "high": 200, "is_measured": True},
]


def layout_of(cell: DesignCell) -> dict[str, int]:
    factor = 4 if cell.variant == "b16" else 1
    n = PIECES[cell.prompt_tokens] * factor
    size = PIECE_BYTES // factor
    return {"descriptors": n, "descriptor_bytes": size, "bytes": n * size}


def moved_of(cell: DesignCell) -> float:
    share = 1.0 if cell.variant == "b16" else MERGED
    return layout_of(cell)["descriptors"] * share


def phases_of(cell: DesignCell) -> dict[str, Load]:
    loads = {}
    wobble = 1 + WOBBLE[cell.block] * (1 if cell.transport == "roce" else -0.5)
    ttft_s = 0.2 + 1e-3 * EXTRA[cell.arm] * wobble + cell.prompt_tokens * 1e-5
    for name, n in (("warmup", 1), ("one_at_a_time", 4), ("in_flight", 8)):
        requests = [(float(i), i + ttft_s, i + ttft_s + 0.04) for i in range(n)]
        if cell.transport == "none":
            loads[name] = Load(requests=requests)
            continue
        start, each, byte = COST[cell.transport]
        size, pieces = layout_of(cell)["bytes"], moved_of(cell)
        pull_s = 1e-6 * (start + each * pieces + byte * size) * wobble
        loads[name] = Load(
            transfers=n,
            xfer_s=n * pull_s,
            post_s=n * pull_s / 4,
            n_bytes=n * size,
            descriptors=n * pieces,
            requests=requests,
        )
    return loads


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole study, its tables, verdict, figures and page."""
    out = tmp_path_factory.mktemp("served")
    cells = planned(ARMS, PROMPTS, BLOCKS)
    for order, cell in enumerate(cells):
        transport = {"seen": {"nvlink": "cuda_ipc", "roce": "rc_mlx5"}.get(cell.transport, "none")}
        write_served(out, cell, phases_of(cell), order=order, layout=layout_of(cell), **transport)
    quoted = {"source": "a blog", "arm": "roce", "baseline": "nvlink"}
    quoted |= {"ratios": {}, "guide": {"source": "a guide", "extra_ttft_ms": GUIDE}}
    share = {"name": "bound by operations", "says": "more than half", "metric": "pull_ms"}
    quoted["claims"] = [{**share, "arm": "nvlink", "share_above": 0.5}]
    path = write_design(
        out / "design.json",
        cells,
        engine="dynamo",
        model="gemma-4-31b-it",
        contrasts=[["roce", "nvlink"], ["nvlink+b16", "nvlink"], ["nvlink", "none"]],
        claims={"alpha": 0.05, "margins": {"ttft_ms": 0.02}, "quoted": quoted},
        arms={
            arm: {
                "declares": ["env.UCX_TLS", "workload.block_tokens"],
                "series": f"{arm.split('+')[0]} read",
                "operation": "read",
            }
            for arm in ARMS
        },
    )
    tables.build(path, out, out)
    stats.build(out / "cells.parquet", path, out)
    cost_model.build(out / "cells.parquet", path, out)
    verdict.build(out / "contrasts.parquet", out / "cells.parquet", path, out)
    named = [out / f"{name}.parquet" for name in ("cells", "launch_summary", "verdict")]
    claims.build(named[2], named[0], out, path, out)
    figures.build(*named, out, path, out / "figures", out / "figures.json")
    report.build(
        *(path, named[0], out / "witnesses.parquet", out / "provenance.json", named[2]),
        *(out / "claims.parquet", out, out / "figures", out / "figures.json"),
        out / "index.html",
    )
    return out


def extra_of(arm: str) -> list[float]:
    """Return an arm's extra time of each block, in ms."""
    sign = 1 if arm == "roce" else -0.5
    return [EXTRA[arm] * (1 + wobble * sign) for wobble in WOBBLE]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return mean and t interval of four values; t(0.975; 3) = 3.18245."""
    series = pd.Series(values)
    half = 3.18245 * series.std() / 2
    return series.mean(), series.mean() - half, series.mean() + half


def test_extra_time_of_every_arm_has_its_interval_in_the_verdict(folder: Path) -> None:
    data = json.loads((folder / "verdict.json").read_text())
    schema = json.loads((ROOT / "docs/verdict.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(data)) == []
    rows = data["extra_ttft"]
    # There is no engine alone with blocks of 16 tokens, so nothing to hold nvlink+b16 against.
    assert [(r["arm"], r["prompt_tokens"]) for r in rows] == [
        *(("nvlink", 4096), ("nvlink", 16384), ("roce", 4096), ("roce", 16384))
    ]
    for row in rows:
        expected = interval(extra_of(row["arm"]))
        told = [row[name] for name in ("value_ms", "low_ms", "high_ms")]
        assert told == pytest.approx(expected, rel=1e-4)
        assert (row["n_launches"], row["against"]) == (BLOCKS, "none")


def test_verdict_says_it_in_words_and_in_a_table(folder: Path) -> None:
    text = (folder / "verdict.md").read_text()
    answer = (
        "Pulling the cache over roce adds to the time to first token, against one engine that "
        "serves alone (none): 25.1 ms at 4,096 tokens (24.4 to 25.7 ms), 25.1 ms at 16,384 tokens"
    )
    assert answer in text
    assert "over nvlink+b16 adds to" not in text
    table = text[text.index("## Extra time to first token") :].splitlines()[4:8]
    assert table[0].startswith("| nvlink (over none) | +40.0 ms (39.4 to 40.5 ms) slower | +39.9")
    # Without a contrast of its own it has the value and no word.
    assert table[1].startswith("| roce (over none) | +25.1 ms (24.4 to 25.7 ms) | +25.1 ms")
    assert table[2].startswith("| nvlink+b16 (over one engine alone) | no value | no value |")
    assert table[3].startswith("| roce (less nvlink) | -14.9 ms (")
    assert "faster" in table[3]


def test_cache_correctness_was_not_checked_and_that_is_said(folder: Path) -> None:
    note = "Cache correctness: not checked."
    assert note in (folder / "verdict.md").read_text()
    page = (folder / "index.html").read_text()
    method = page[page.index('id="method"') : page.index('id="roads"')]
    assert note in method
    assert json.loads((folder / "verdict.json").read_text())["cache_check"].startswith(note)


def test_a_check_is_counted_by_what_it_found() -> None:
    told = ["equal"] * 5 + ["different"] + ["not checked"] * 2 + [None]
    note = verdict.cache_note(pd.DataFrame({"cache_check": told}))
    assert "equal in 5, different in 1, not checked in 2 of 8 cells" in note
    assert verdict.cache_note(pd.DataFrame({"pull_ms": [1.0]})) == ""


def test_every_figure_of_a_serving_study(folder: Path) -> None:
    left_out = {p["name"]: p["left_out"] for p in json.loads((folder / "figures.json").read_text())}
    names = ("ratios", "pull_time", "post_split", "extra_ttft", "rate", "launches")
    assert left_out == dict.fromkeys(names, "")
    page = (folder / "index.html").read_text()
    for name in names:
        assert (folder / "figures" / f"{name}.png").stat().st_size > 10_000
        assert f'id="figure-{name}"' in page


def test_extra_time_is_drawn_beside_what_is_quoted(folder: Path) -> None:
    data = pd.read_csv(folder / "figures" / "extra_ttft.csv")
    ours = data[data["kind"] == "measured here"]
    assert ours["road"].tolist() == ["nvlink", "nvlink", "roce", "roce"]
    assert ours["prompt_tokens"].tolist() == PROMPTS * 2
    expected = interval(extra_of("roce"))
    shown = ours.loc[ours["road"] == "roce", ["value_ms", "low_ms", "high_ms"]]
    assert shown.iloc[0].tolist() == pytest.approx(expected, rel=1e-4)
    quoted = data[data["kind"] != "measured here"]
    assert quoted["kind"].tolist() == [
        *("quoted, an estimate of its source", "quoted, its source calls it measured")
    ]
    svg = " ".join((folder / "figures" / "extra_ttft.svg").read_text().split())
    assert "Quoted: a guide; not measured here." in svg
    assert "Ours: none" not in svg


def test_what_pulls_nothing_is_in_no_figure_of_pulls(folder: Path) -> None:
    for name in ("pull_time", "post_split", "launches"):
        data = pd.read_csv(folder / "figures" / f"{name}.csv")
        assert set(data["arm"]) == {"nvlink", "roce", "nvlink+b16"}, name
    split = (folder / "figures" / "post_split.svg").read_text()
    assert "(n = 4 launches)" in split
    assert "mean of a launch" in split
    assert "launches (mean of their pulls" in (folder / "figures" / "pull_time.svg").read_text()


def test_costs_are_fitted_with_the_descriptors_as_they_were_moved(folder: Path) -> None:
    models = pd.read_csv(folder / "cost_model.csv").query("measure == 'pull_ms'")
    nvlink = models.set_index("series").loc["nvlink read"]
    # With the layout's descriptors of the merged pulls it would be a fifth too dear or more.
    assert nvlink["per_descriptor_us"] == pytest.approx(COST["nvlink"][1], rel=0.02)
    assert nvlink["gb_per_s"] == pytest.approx(50, rel=0.1)
    assert (
        "8 of 16 launches are fitted with the descriptors that the engine counted"
        in (nvlink["note"])
    )
    assert nvlink["n_points"] == 4
    points = pd.read_csv(folder / "cost_points.csv").query("measure == 'pull_ms'")
    own = points[points["series"] == "nvlink read"]
    assert sorted(own["descriptors"]) == [1600, 6400, 8000, 32000]
    assert own["n_launches"].tolist() == [BLOCKS] * 4
    rate = pd.read_csv(folder / "figures" / "rate.csv").query("kind == 'measured'")
    sizes = rate.loc[rate["series"] == "nvlink read", "descriptor_bytes"]
    assert sorted(sizes) == [PIECE_BYTES // 4, int(PIECE_BYTES / MERGED)]
    # The claim on the share of operations finds its points.
    claim = pd.read_csv(folder / "claims.csv").iloc[0]
    assert "at 4,096" in claim["measured"]


@pytest.mark.parametrize(
    ("moved", "expected", "is_as_moved"),
    [
        ([992.0, 1000.0], [1000.0] * 2, False),  # within 1 % of the layout
        ([800.0, 900.0], [850.0] * 2, True),  # one point: the launches' mean
        ([1100.04, 1100.0], [1100.0] * 2, True),
        ([float("nan")] * 2, [1000.0] * 2, False),
    ],
)
def test_descriptors_of_the_fit(
    moved: list[float], expected: list[float], is_as_moved: bool
) -> None:
    cells = pd.DataFrame(
        {
            **{"arm": ["a", "a"], "prompt_tokens": [4096] * 2, "descriptors": [1000] * 2},
            **{"pull_bytes": [10**6] * 2, "descriptors_moved": moved, "bytes_moved": [1e6] * 2},
        }
    ).astype({"descriptors": "Int64", "pull_bytes": "Int64"})
    fitted = as_moved(cells)
    assert fitted["descriptors"].tolist() == expected
    assert fitted["pull_bytes"].tolist() == [1e6] * 2
    assert fitted["is_as_moved"].tolist() == [is_as_moved] * 2


def test_notes_name_pulls_unlike_the_layout(folder: Path) -> None:
    note = "nvlink, at 4,096 tokens: a pull had 1,600.0 descriptors, the layout has 2,000, since"
    flags = json.loads((folder / "verdict.json").read_text())["flags"]
    assert any(text.startswith(note) for text in flags)
    assert not any(text.startswith("nvlink+b16, at 4,096 tokens: a pull had") for text in flags)
    assert note in (folder / "index.html").read_text()


@pytest.mark.usefixtures("no_git")
def test_mlflow_names_say_what_a_value_is(folder: Path) -> None:
    found = read_records(folder / "design.json", folder, folder, folder, folder)
    runs = {run.name: run for run in found.cells}
    run = runs["nvlink 4096 b0"]
    expected: dict[str, Any] = {
        "ttft_p50_one_at_a_time/p50": 280.96,
        "extra_ttft_ms/p50_difference": 40.0,
        "requests_per_s_in_flight/rate": 8 / 7.32096,
        "descriptors_moved": 1600.0,
        "descriptors": 2000.0,
        "n_requests": 12.0,
        "n_failed_requests": 0.0,
        "n_pulls": 12.0,
    }
    assert {name: run.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert run.metrics["pull_ms/mean"] == pytest.approx(4 * run.metrics["post_ms/mean"])
    assert not [name for name in run.metrics if name.startswith("pull") and name.endswith("p50")]
    tags = {"engine_version": "vllm 0.23.0, ai-dynamo 1.3.1", "cache_check": "not checked"}
    assert {name: run.tags[name] for name in tags} == tags
    assert len(run.tags["prompts"]) == 12
    assert "pull_ms/mean" not in runs["none 4096 b0"].metrics
    assert "cache_check" not in runs["none 4096 b0"].tags
