"""`kvroad whatif` on the published studies."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from commands import REPOSITORY, kvroad


def test_a_row_per_combination_with_interval_share_and_mark() -> None:
    done = kvroad(
        *("whatif", "study=h200_nvlink", "block_tokens=[16,128]", "prompt_tokens=8192"),
        "ttft_ms=350",
    )
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("PREDICTION, nothing here was measured")
    header, first, second = lines[1:4]
    assert header.split()[0] == "block"
    assert first.split()[:2] == ["16", "11,620"]
    assert first.endswith("*"), "16 tokens a block were never measured"
    assert not second.endswith("*")
    assert any(line.startswith("* EXTRAPOLATED: descriptors 11,620") for line in lines)


def test_the_numbers_are_those_of_the_fit() -> None:
    (row,) = kvroad("whatif", "study=h200_nvlink", "prompt_tokens=8192", "--json").data
    fits = pd.read_csv(REPOSITORY / "reports/published/h200_nvlink/cost_model.csv")
    fit = fits[(fits["series"] == "nvlink read") & (fits["measure"] == "pull_ms")].iloc[0]
    expected_us = (
        fit["t0_us"]
        + fit["per_descriptor_us"] * row["descriptors"]
        + row["pull_bytes"] / (1e3 * fit["gb_per_s"])
    )
    assert row["pull_ms"] == pytest.approx(expected_us / 1000)
    assert row["pull_low_ms"] < row["pull_ms"] < row["pull_high_ms"]
    assert row["is_prediction"] is True
    assert row["ttft_share"] is None
    half = kvroad("whatif", "study=h200_nvlink", "prompt_tokens=8192", "ttft_ms=100", "--json")
    assert half.data[0]["ttft_share"] == pytest.approx(row["pull_ms"] / 100)


def test_operations_of_two_studies_and_why_a_row_has_no_number() -> None:
    done = kvroad(
        *("whatif", "study=[h200_nvlink,h200_regions]", "operation=[read,push_sgl]"),
        *("prompt_tokens=4096", "--json"),
    )
    got = [(r["asked"]["study"], r["asked"]["operation"], "pull_ms" in r) for r in done.data]
    assert got == [
        ("h200_nvlink", "read", True),
        ("h200_nvlink", "push_sgl", False),
        ("h200_regions", "read", False),
        ("h200_regions", "push_sgl", True),
    ]
    assert "cannot be told apart" in done.data[1]["refusal"]
    assert done.data[3]["series"] == "nvlink write, NIXL_UCX_SGL_ENABLE=y"


def test_a_single_row_is_a_sentence() -> None:
    words = ("study=h200_nvlink", "model=llama-3.3-70b", "prompt_tokens=16384", "tp=8")
    done = kvroad("whatif", *words, "engine.regions=8")
    assert done.out.startswith("PREDICTION: from the fit of study h200_nvlink (nvlink read), not")
    assert "8 descriptors" in done.out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "study is missing"),
        (["study=h200_nvlin"], 2, "did you mean 'h200_nvlink'?"),
        (["study=h200_nvlink", "blok_tokens=16"], 2, "did you mean 'block_tokens'?"),
        (["study=h200_nvlink", "block_tokens=16,32"], 2, "block_tokens=[16,32]"),
        (["study=h200_nvlink", "block_tokens=[]"], 2, "empty list"),
        (["study=h200_nvlink", "tp=half"], 2, "tp: 'half' is not a whole number"),
        (["study=h200_nvlink", "ttft_ms=0"], 2, "ttft_ms: 0 is not a time above 0"),
        (["study=h200_nvlink", "model=gemma"], 2, "did you mean 'gemma-4-31b-it'?"),
        (["study=h200_nvlink", "operation=pus"], 1, "did you mean 'push'?"),
        (["study=h200_nvlink", "road=tcp"], 1, "it has: cuda_ipc"),
        (["study=h200_nvlink", "series=nvlink"], 1, "no series 'nvlink'"),
        (["study=aa"], 1, "does not fit"),
        (["study=[h200_nvlink,aa]", f"regions={list(range(1, 200))}"], 2, "200 at most"),
    ],
)
def test_what_cannot_be_meant_or_told(words: list[str], status: int, said: str) -> None:
    done = kvroad("whatif", *words)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_tables_of_a_study_that_was_run_here(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    here = tmp_path / "results" / "studies" / "mine"
    here.mkdir(parents=True)
    for name in ("cells.csv", "study.json", "cost_model.csv"):
        shutil.copy(REPOSITORY / "reports/published/h200_nvlink" / name, here)
    assert kvroad("whatif", "study=mine", folder=tmp_path).status == 0
    (here / "cost_model.csv").unlink()
    done = kvroad("whatif", "study=mine", folder=tmp_path)
    assert (done.status, "cost_model.csv: cannot be read" in done.err) == (1, True)
