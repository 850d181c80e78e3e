"""Published claims: a word for each, and never one for other hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import design_data, frames, planned

from kvroad.analysis.cost_model import TABLES
from kvroad.analysis.stats import contrasts_frame
from kvroad.analysis.tables import parse_design
from kvroad.analysis.verdict import verdict_frame
from kvroad.analysis.verdict.claims import WORDS, claims_frame
from kvroad.errors import UserError
from kvroad.study.compose import compose

REPOSITORY = Path(__file__).parents[2]
QUOTED = compose(["study=roce_vs_nvlink"], REPOSITORY / "conf").claims.quoted
PROMPTS = (4096, 8192, 16384)
# Of the arms; that of the baseline is turned round, so that a block does not cancel it.
NOISE = (0.995, 1.0, 1.005, 1.002)


def claims(
    ratios: dict[str, float],
    *,
    gpus: str = "NVIDIA B300",
    engine: str = "nixl",
    model: str = "gemma-4-31b-it",
    share: tuple[float, float, float] | None = None,
    quoted: Any = QUOTED,
) -> pd.DataFrame:
    """Return the claims' rows for arms whose pulls take so many times nvlink's."""
    arms = {"nvlink": 1.0, **ratios}
    noise = {arm: NOISE[::-1] if arm == "nvlink" else NOISE for arm in arms}
    values = {
        arm: {p: [20.0 * ratio * e for e in noise[arm]] for p in PROMPTS}
        for arm, ratio in arms.items()
    }
    cells, _ = frames(values)
    cells["gpus"], cells["reason"] = gpus, ""
    cells = cells.assign(road_expected="", road_seen="", where="", quote="")
    contrasts = [[a, "nvlink"] for a in ratios] + [
        [a, "roce"] for a in ratios if "roce" in ratios and a != "roce"
    ]
    facts = {
        arm: {"declares": ["env.UCX_TLS", "engine.regions"], "series": arm, "operation": "read"}
        for arm in arms
    }
    data = design_data(
        planned(list(arms), list(PROMPTS), 4),
        contrasts=contrasts,
        arms=facts,
        engine=engine,
        model=model,
    )
    data["claims"]["quoted"] = quoted
    design = parse_design(data)
    points = pd.DataFrame(columns=["series", "measure", "descriptors", "pull_bytes"])
    if share is not None:
        of_nvlink = cells[cells["arm"] == "nvlink"].drop_duplicates("prompt_tokens")
        points = of_nvlink[["descriptors", "pull_bytes"]].assign(
            series="nvlink",
            measure="pull_ms",
            operations_share=share[0],
            operations_share_low=share[1],
            operations_share_high=share[2],
        )
    verdict = verdict_frame(contrasts_frame(cells, design), cells, design)
    frame = claims_frame(verdict, cells, points, design)
    assert set(frame["word"]) <= set(WORDS)
    return frame.set_index("claim")


@pytest.mark.parametrize(
    ("ratio", "word"),
    [(0.75, "holds"), (0.65, "holds"), (0.95, "does not hold"), (0.3, "does not hold")],
)
def test_a_published_range_is_held_against_the_interval(ratio: float, word: str) -> None:
    row = claims({"roce": ratio}).loc["pull time"]
    assert row["word"] == word
    assert row["published"] == "0.66x at 4,096, 0.86x at 8,192, 0.73x at 16,384 tokens"
    assert f"{ratio:.3f}x (" in row["measured"]
    assert row["contrast"] == "roce against nvlink"


def test_an_interval_across_the_edge_leaves_it_open() -> None:
    # The upper end is 0.86 widened by the margin of 5 %.
    row = claims({"roce": 0.86 * 1.05}).loc["pull time"]
    assert row["word"] == "inconclusive"
    assert "not wholly inside" in row["why"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpus": "NVIDIA H200"}, "published for B300 GPUs, this host has NVIDIA H200"),
        ({"gpus": "none"}, "published for B300 GPUs, this host has none"),
        ({"model": "llama-3.1-8b"}, "published for model gemma-4-31b-it, not llama-3.1-8b"),
    ],
)
def test_other_hardware_or_models_test_nothing(changes: dict[str, Any], why: str) -> None:
    frame = claims({"roce": 0.75, "nvlink+regions8": 0.1}, share=(0.9, 0.8, 1.0), **changes)
    assert set(frame["word"]) == {"not testable here"}
    assert why in frame.loc["pull time", "why"]
    # What was measured stands beside it all the same.
    assert "0.750x" in frame.loc["pull time", "measured"]


def test_what_only_an_engine_shows_is_not_tested_by_the_replay() -> None:
    frame = claims({"roce": 0.75})
    for name in ("time to first token", "throughput"):
        assert frame.loc[name, "word"] == "not testable here"
        assert "published for engine dynamo or vllm, not nixl" in frame.loc[name, "why"]


def test_the_claim_its_authors_did_not_test() -> None:
    row = claims({"roce": 0.75, "nvlink+regions8": 0.1}).loc["few large regions"]
    assert row["word"] == "holds"
    assert row["published"] == "faster; said to be untested"
    assert row["contrast"] == "nvlink+regions8 against roce"
    slower = claims({"roce": 0.75, "nvlink+regions8": 0.9}).loc["few large regions"]
    assert slower["word"] == "does not hold"


def test_without_the_other_road_the_nearest_contrast_is_shown() -> None:
    row = claims({"nvlink+regions8": 0.1, "nvlink+regions1": 0.08}).loc["few large regions"]
    assert row["word"] == "not testable here"
    assert row["why"] == "the study has no proven contrast of these arms"
    assert "nvlink+regions8 against nvlink" in row["contrast"]
    assert "nvlink+regions8: 0.100x (" in row["measured"]


@pytest.mark.parametrize(
    ("share", "word"),
    [
        ((0.9, 0.8, 1.0), "holds"),
        ((0.3, 0.2, 0.4), "does not hold"),
        ((0.6, 0.4, 0.8), "inconclusive"),
        (None, "not testable here"),
    ],
)
def test_bound_by_operations_is_the_cost_models_share(share: Any, word: str) -> None:
    assert claims({"roce": 0.75}, share=share).loc["bound by operations", "word"] == word


def test_every_published_claim_has_a_row_and_a_study_without_claims_none() -> None:
    assert len(claims({"roce": 0.75})) == len(QUOTED["claims"]) == 6
    cells, design = frames({"shm": {4096: [1.0] * 4}, "tcp": {4096: [2.0] * 4}})
    verdict = verdict_frame(contrasts_frame(cells, design), cells, design)
    assert claims_frame(verdict, cells, pd.DataFrame(), design).empty


def test_a_claim_without_an_arm_is_refused_in_one_line() -> None:
    quoted = {**QUOTED, "claims": [{"name": "n", "says": "s", "metric": "pull_ms"}]}
    with pytest.raises(UserError, match="lacks 'arm'"):
        claims({"roce": 0.75}, quoted=quoted)


def test_the_workflow_names_the_cost_models_tables() -> None:
    text = (REPOSITORY / "workflow/rules/common.smk").read_text()
    listed = text.partition("COST_TABLES = [")[2].partition("]")[0]
    assert [word.strip(' \n"') for word in listed.split(",") if word.strip()] == list(
        TABLES.values()
    )
