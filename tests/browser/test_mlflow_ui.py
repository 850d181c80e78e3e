"""MLflow's pages in a real browser, over a published study and one with refused cells."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mlflow import MlflowClient
from mlflow_page import searches
from mlflow_server import server
from ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]

REPORTS = Path(__file__).parent.parent.parent / "reports/published"
NVLINK, SMOKE = "h200_nvlink", "smoke"


@dataclass(frozen=True)
class Tracked:
    """A server over what two studies logged."""

    uri: str
    client: MlflowClient

    def experiment(self, name: str) -> str:
        return str(self.client.get_experiment_by_name(name).experiment_id)


@pytest.fixture(scope="module")
def tracked(make_checkout: Callable[[], Any]) -> Iterator[Tracked]:
    checkout = make_checkout()
    raw = REPORTS / NVLINK / "raw.tar.xz"
    subprocess.run(["tar", "-xJf", str(raw), "-C", str(checkout.path)], check=True)
    checkout.snakemake("all", "--config", f"study={NVLINK}", check=True)
    fell = checkout.snakemake("all", "--config", f"study={SMOKE}", "transport=[shm,roce]")
    assert fell.returncode == 1
    assert "cells are not proven" in fell.stderr
    with server(checkout.path, free_port(), database="mlflow.db") as uri:
        yield Tracked(uri, MlflowClient(uri))


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1500, "height": 950})
    opened.set_default_timeout(60_000)
    yield opened
    opened.close()


def names(runs: Any) -> list[str]:
    return [run.info.run_name for run in runs]


class TestSearches:
    """What docs/mlflow.md says that its searches return."""

    def test_regions_come_first_at_16k(self, tracked: Tracked) -> None:
        found = names(searches()[1].run(tracked.client, [NVLINK]))
        assert len(found) == 20
        assert {name.rpartition(" ")[0] for name in found[:4]} == {"nvlink+regions8 16384"}

    def test_refused_cells_say_why(self, tracked: Tracked) -> None:
        runs = searches()[2].run(tracked.client, [NVLINK, SMOKE])
        assert len(runs) == 4
        for run in runs:
            assert run.data.params["transport"] == "roce"
            assert run.data.tags["outcome"] == "refused"
            assert "tcp" in run.data.tags["reason"]
            assert ".log:" in run.data.tags["where"]
            assert run.data.metrics == {}

    def test_cells_that_fell_to_tcp(self, tracked: Tracked) -> None:
        runs = searches()[3].run(tracked.client, [NVLINK, SMOKE])
        assert {run.data.params["transport"] for run in runs} == {"roce"}
        assert len(runs) == 4

    def test_runs_to_compare_differ_in_the_block_alone(self, tracked: Tracked) -> None:
        first, second, *others = searches()[4].run(tracked.client, [NVLINK])
        assert len(others) == 2
        pairs = set(first.data.params.items()) ^ set(second.data.params.items())
        assert {name for name, _ in pairs} == {"block"}
        assert first.data.params["setting/env.UCX_TLS"] == "cuda_ipc,cuda_copy,tcp"
        assert first.data.params["driver"] == "580.159.04"

    def test_studies_that_found_regions_faster(self, tracked: Tracked) -> None:
        (run,) = searches()[5].run(tracked.client, [NVLINK, SMOKE])
        assert run.info.run_name == f"{NVLINK} verdict"
        ratio = run.data.metrics["pull_ms_ratio/nvlink.regions8_vs_nvlink_p16384"]
        verdict = json.loads((REPORTS / NVLINK / "verdict.json").read_text())
        (row,) = [
            row
            for row in verdict["rows"]
            if (row["arm"], row["metric"], row["prompt_tokens"])
            == ("nvlink+regions8", "pull_ms", 16384)
        ]
        assert ratio == pytest.approx(row["ratio"])
        assert "# h200_nvlink" in run.data.tags["mlflow.note.content"]


class TestRunsTable:
    def test_view_of_arms_has_its_columns_fastest_first(self, tracked: Tracked, page: Any) -> None:
        number = tracked.experiment(NVLINK)
        page.goto(f"{tracked.uri}/#/experiments/{number}/runs?viewStateShareKey=arms")
        page.get_by_text("60 matching runs").wait_for()
        page.get_by_text("nvlink+regions8 4096").first.wait_for()
        text = page.inner_text("body")
        for column in ("pull_ms/p50", "post_ms/p50", "prompt_tokens"):
            assert column in text
        assert "A run per cell" in text
        assert text.index("nvlink+regions8 4096") < text.index("nvlink+push_sgl 4096")

    def test_view_of_the_unproven_says_why(self, tracked: Tracked, page: Any) -> None:
        number = tracked.experiment(SMOKE)
        page.goto(f"{tracked.uri}/#/experiments/{number}/runs?viewStateShareKey=unproven")
        page.get_by_text("4 matching runs").wait_for()
        text = page.inner_text("body")
        assert "refused" in text
        assert "rc_mlx5, rc_verbs" in text

    def test_documented_filter_is_taken_by_the_table(self, tracked: Tracked, page: Any) -> None:
        number, where = tracked.experiment(NVLINK), searches()[1].where
        page.goto(f"{tracked.uri}/#/experiments/{number}/runs?searchFilter={quote(where)}")
        # Unsorted, the UI adds the run of the session, below which it shows the cells.
        page.get_by_text("21 matching runs").wait_for()


class TestComparePage:
    def test_arms_by_prompt_length(self, tracked: Tracked, page: Any) -> None:
        number = tracked.experiment(NVLINK)
        where = "tags.`kvroad.kind` = 'cell' and params.block = '0'"
        runs = tracked.client.search_runs([number], where)
        assert len(runs) == 15
        ids = quote(json.dumps([run.info.run_id for run in runs]))
        experiments = quote(json.dumps([number]))
        page.goto(f"{tracked.uri}/#/compare-runs?runs={ids}&experiments={experiments}")
        page.get_by_text("Comparing 15 Runs from 1 Experiment").wait_for()
        page.locator(".js-plotly-plot .parcoords, .js-plotly-plot svg").first.wait_for()
        text = page.inner_text("body")
        chosen = text[text.index("Parameters:") : text.index("Run details")]
        for axis in ("arm", "prompt_tokens", "pull_ms/p50"):
            assert axis in chosen, chosen
        page.get_by_text("Show diff only").first.click()
        page.wait_for_function("() => !document.body.innerText.includes('6.18.44-fc-v657-gpu')")
        assert "setting/engine.regions" in page.inner_text("body")
