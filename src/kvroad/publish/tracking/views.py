"""What an experiment shows by itself: a note, and views of its runs table to open by a link.

The UI keeps a shared view of its runs table as an experiment tag
``mlflow.sharedViewState.<key>`` and opens it with ``?viewStateShareKey=<key>`` (MLflow
3.17.2, its share button). A version that knows no such tag shows its default table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvroad.publish.tracking.run import NOTE_TAG

__all__ = ["VIEWS", "View", "first_tags", "view_tags"]

_CELLS = "tags.`kvroad.kind` = 'cell'"


@dataclass(frozen=True)
class View:
    """A view of the runs table: filter, order and columns, each as MLflow writes them."""

    says: str
    search: str
    order_by: str
    is_ascending: bool
    columns: tuple[str, ...]

    def as_json(self) -> str:
        """Return the value of its tag."""
        state = {
            "searchFilter": self.search,
            "orderByKey": self.order_by,
            "orderByAsc": self.is_ascending,
            "selectedColumns": list(self.columns),
        }
        return json.dumps(state, separators=(",", ":"))


VIEWS: Mapping[str, View] = {
    "arms": View(
        "proven cells, the fastest pull first",
        f"{_CELLS} and attributes.status = 'FINISHED'",
        "metrics.`pull_ms/p50`",
        True,
        (
            "params.`arm`",
            "params.`prompt_tokens`",
            "params.`block`",
            "metrics.`pull_ms/p50`",
            "metrics.`post_ms/p50`",
            "metrics.`goodput_gb_per_s/p50`",
            "tags.`road_seen`",
        ),
    ),
    "serving": View(
        "proven cells of serving engines, the fastest first token first",
        f"{_CELLS} and attributes.status = 'FINISHED'",
        "metrics.`ttft_p50_one_at_a_time/p50`",
        True,
        (
            "params.`arm`",
            "params.`prompt_tokens`",
            "params.`block`",
            "metrics.`pull_ms/mean`",
            "metrics.`post_ms/mean`",
            "metrics.`ttft_p50_one_at_a_time/p50`",
            "metrics.`extra_ttft_ms/p50_difference`",
            "metrics.`requests_per_s_in_flight/rate`",
            "tags.`engine_version`",
        ),
    ),
    "unproven": View(
        "refused and failed cells with the reason",
        f"{_CELLS} and attributes.status = 'FAILED'",
        "attributes.`Created`",
        False,
        (
            "params.`arm`",
            "params.`prompt_tokens`",
            "tags.`outcome`",
            "tags.`road_expected`",
            "tags.`road_seen`",
            "tags.`reason`",
        ),
    ),
    "versions": View(
        "what each cell was measured with",
        _CELLS,
        "attributes.`Created`",
        False,
        (
            "params.`arm`",
            "params.`prompt_tokens`",
            "metrics.`pull_ms/p50`",
            "params.`nixl`",
            "params.`ucx`",
            "params.`driver`",
            "params.`host`",
            "tags.`git_commit`",
        ),
    ),
    "verdicts": View(
        "a run per resolved study, its verdict as description",
        "tags.`kvroad.kind` = 'study'",
        "attributes.`Created`",
        False,
        ("tags.`study_slug`", "tags.`outcome`", "tags.`overrides`", "params.`baseline`"),
    ),
}


def view_tags() -> dict[str, str]:
    """Return the experiment tag of each view."""
    return {f"mlflow.sharedViewState.{key}": view.as_json() for key, view in VIEWS.items()}


def first_tags(experiment_id: str) -> dict[str, str]:
    """Return what a new experiment is given once: a note with links to the views, its kind."""
    links = "\n".join(
        f"- [{view.says}](#/experiments/{experiment_id}/runs?viewStateShareKey={key})"
        for key, view in VIEWS.items()
    )
    note = (
        "A run per cell (arm, prompt length, block), grouped below its session, and a run per"
        " resolved study with the verdict. Cells whose road was not proven are FAILED and carry"
        f" no metric.\n\n{links}\n"
    )
    # Without a kind the UI asks on each visit, and offers traces and prompts.
    return {NOTE_TAG: note, "mlflow.experimentKind": "custom_model_development"}
