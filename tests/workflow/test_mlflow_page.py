"""docs/mlflow.md against a store: each search returns what the page says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow_page import PAGE, searches
from test_tracking_live import Project

from kvroad.publish.tracking.store import open_store
from kvroad.publish.tracking.uri import resolve_target
from kvroad.publish.tracking.views import VIEWS, view_tags

ARMS = ("nvlink", "nvlink+regions8", "roce")
REFUSED = {f"roce-p{tokens}-b0-0123456789ab": "refused" for tokens in (4096, 8192, 16384)}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    """A store with one study: a slow arm, a fast one, one that fell to TCP."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        project = Project(folder, slug="nv", study="nv", arms=ARMS, blocks=1, unproven=REFUSED)
        project.write(pull_ms={"nvlink": 15.0, "nvlink+regions8": 1.8, "roce": 9.0})
        project.log()
        project.log()
    return MlflowClient(f"sqlite:///{folder}/mlflow.db")


def names(runs) -> list[str]:
    return [run.info.run_name for run in runs]


def test_page_has_five_searches() -> None:
    assert list(searches()) == [1, 2, 3, 4, 5]


def test_fastest_arm_at_16k_comes_first(client: MlflowClient) -> None:
    assert names(searches()[1].run(client, ["nv"])) == [
        "nvlink+regions8 16384 b0",
        "nvlink 16384 b0",
    ]


def test_refused_cells_come_with_their_reason(client: MlflowClient) -> None:
    runs = searches()[2].run(client, ["nv"])
    assert sorted(names(runs)) == ["roce 16384 b0", "roce 4096 b0", "roce 8192 b0"]
    assert {run.data.tags["reason"] for run in runs} == {"refused as seen"}
    assert all(run.data.metrics == {} for run in runs)


def test_cells_that_fell_to_tcp(client: MlflowClient) -> None:
    assert len(searches()[3].run(client, ["nv"])) == 3


def test_runs_of_one_arm_are_found_to_compare(client: MlflowClient) -> None:
    (run,) = searches()[4].run(client, ["nv"])
    assert run.data.params["nixl"] == "1.5.1"


def test_studies_with_a_verdict(client: MlflowClient) -> None:
    # The synthetic verdict says slower of every arm.
    search = searches()[5]
    assert search.run(client, ["nv"]) == []
    slower = type(search)("", search.where.replace("'faster'", "'slower'"), search.order)
    assert names(slower.run(client, ["nv"])) == ["nv verdict"]


def test_every_name_of_the_tables_is_there(client: MlflowClient) -> None:
    search = type(searches()[1])("", "tags.`kvroad.kind` = 'cell'", "attributes.start_time ASC")
    run = search.run(client, ["nv"])[0]
    rows = {key: text for key, text in re.findall(r"^\| (\w+) \| (.+) \|$", PAGE.read_text(), re.M)}
    here = {"metrics": run.data.metrics, "tags": run.data.tags}
    # Of files that the synthetic study lacks, or of a refusal.
    absent = {"pull_bytes", "where", "measured_at", "git_commit", "git_dirty"}
    # Of serving engines; their records are tested with their study.
    absent |= {"engine_version", "prompts", "cache_check"}
    for kind, held in here.items():
        for name in set(re.findall(r"`([^`…]+)`", rows[kind])) - absent - {"_in_flight"}:
            assert name in held, name


class TestViews:
    def test_views_are_tags_and_the_note_links_to_them(self, client: MlflowClient) -> None:
        experiment = client.get_experiment_by_name("nv")
        note = experiment.tags["mlflow.note.content"]
        for key, view in VIEWS.items():
            assert experiment.tags[f"mlflow.sharedViewState.{key}"] == view.as_json()
            assert f"#/experiments/{experiment.experiment_id}/runs?viewStateShareKey={key}" in note
            assert f"`{key}`" in PAGE.read_text() or f"={key}`" in PAGE.read_text()

    @pytest.mark.parametrize("key", VIEWS)
    def test_filter_of_a_view_is_one_that_mlflow_takes(
        self, client: MlflowClient, key: str
    ) -> None:
        ids = [client.get_experiment_by_name("nv").experiment_id]
        found = client.search_runs(ids, VIEWS[key].search)
        assert (
            len(found)
            == {"arms": 6, "serving": 6, "unproven": 3, "versions": 9, "verdicts": 1}[key]
        )

    def test_a_description_of_ones_own_is_kept(self, client: MlflowClient) -> None:
        experiment = client.get_experiment_by_name("nv")
        client.set_experiment_tag(experiment.experiment_id, "mlflow.note.content", "mine")
        uri = client.tracking_uri
        with open_store(resolve_target(uri, Path.cwd()), "nv") as store:
            store.describe(view_tags(), {"mlflow.note.content": "ours"})
        held = client.get_experiment_by_name("nv").tags["mlflow.note.content"]
        client.set_experiment_tag(
            experiment.experiment_id, "mlflow.note.content", experiment.tags["mlflow.note.content"]
        )
        assert held == "mine"
