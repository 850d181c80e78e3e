"""Regions over both roads of this machine: as many descriptors as asked for, none merged."""

import json

import pandas as pd
import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]


def test_regions_are_moved_one_by_one(make_checkout) -> None:
    checkout = make_checkout()
    variants = "variant=[regions1,push_regions64]"
    words = ("all", "--config", "study=smoke", variants, "prompt_tokens=[256]")
    checkout.snakemake(*words, check=True)
    (tables,) = (checkout.path / "results/studies").iterdir()
    cells = pd.read_parquet(tables / "cells.parquet")
    assert set(cells["arm"]) == {
        f"{road}+{variant}" for road in ("shm", "tcp") for variant in ("regions1", "push_regions64")
    }
    assert set(cells["outcome"]) == {"proven"}
    assert set(cells["pull_bytes"]) == {57_671_680}
    for cell in cells.to_dict("records"):
        n = 1 if cell["variant"] == "regions1" else 64
        rows = (checkout.path / "results/cells" / cell["cell"] / "raw/pulls-0.jsonl").read_text()
        for row in map(json.loads, rows.splitlines()):
            names = [f"descriptors_{word}" for word in ("planned", "given", "moved")]
            assert [row[name] for name in names] == [n, n, n]
            assert row["bytes_moved"] == 57_671_680
            assert row["verified"] is not False
