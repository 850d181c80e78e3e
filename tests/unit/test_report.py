"""The page: its first sentence, its tables, and that it needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import planned, pull_rows, refused_outcome, write_cell, write_design

from kvroad.analysis import cost_model, stats, tables, verdict
from kvroad.analysis.tables import DesignCell
from kvroad.analysis.verdict import claims
from kvroad.publish import figures
from kvroad.publish import page as report
from kvroad.publish.page.raw_link import with_raw_link

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}


class Page(HTMLParser):
    """Collects text, links, ids and loads; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.paragraphs: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.links.append(values["href"] or "")
        self.loads += [v for k, v in attrs if k in ("src", "data") and v]
        if tag == "link":
            self.loads.append(values.get("href") or "")
        if values.get("id"):
            self.ids.append(values["id"] or "")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "p":
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "p" in self.open and self.paragraphs:
            self.paragraphs[-1] += data


def times(cell: DesignCell, phase: str, pull: int) -> tuple[float, float]:
    xfer = 1000.0 * (10 + cell.block + pull / 7) * (3 if cell.arm == "tcp" else 1)
    return xfer / 2, xfer


def build(folder: Path, arms: list[str], refused: set[str], quote: str = "a <b> & c") -> Path:
    cells = planned(arms, [4096, 8192], 4)
    for position, cell in enumerate(cells):
        result = {**refused_outcome(), "quote": quote} if cell.arm in refused else None
        write_cell(folder, cell, pull_rows(cell, times, 2), order=position, result=result)
    path = write_design(folder / "design.json", cells, overrides=["transport=[shm,tcp,roce]"])
    tables.build(path, folder, folder)
    stats.build(folder / "cells.parquet", path, folder)
    out = folder / "out"
    verdict.build(folder / "contrasts.parquet", folder / "cells.parquet", path, out)
    cost_model.build(folder / "cells.parquet", path, folder)
    claims.build(out / "verdict.parquet", folder / "cells.parquet", folder, path, out)
    manifest = folder / "figures.json"
    figures.build(
        folder / "cells.parquet",
        folder / "launch_summary.parquet",
        out / "verdict.parquet",
        folder,
        path,
        out / "figures",
        manifest,
    )
    return report.build(
        path,
        folder / "cells.parquet",
        folder / "witnesses.parquet",
        folder / "provenance.json",
        out / "verdict.parquet",
        out / "claims.parquet",
        folder,
        out / "figures",
        manifest,
        out / "index.html",
        [out / "verdict.csv", folder / "cells.csv"],
    )


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("study"), ["shm", "tcp", "roce"], {"roce"})


@pytest.fixture(scope="module")
def text(page_path: Path) -> str:
    return page_path.read_text(encoding="utf-8")


def test_first_sentence_is_the_answer(text: str) -> None:
    first = Page(text).paragraphs[0]
    assert first.startswith(
        "A KV pull over tcp takes 3.00 times as long as over shm at 4,096 tokens (95 % interval"
    )
    assert first.endswith(": slower at every prompt length.")


def test_page_nests_and_needs_nothing_else(text: str) -> None:
    page = Page(text)
    assert page.loads == []
    assert "<script" not in text
    assert re.findall(r"""url\((?!["']?#)""", text) == []
    assert len(page.ids) == len(set(page.ids))
    assert len(text.encode()) < 3_000_000


def test_every_reference_inside_a_figure_has_its_target(text: str) -> None:
    targets = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
    names = {a or b for a, b in targets}
    assert names
    assert names <= set(Page(text).ids)


def test_figures_have_text_for_readers_and_times_are_defined(text: str) -> None:
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', text)
    assert len(labels) == 4
    assert "At 8,192 tokens, KV pull time over tcp is 3.00x" in labels[0]
    assert "xfer minus post" in text


def test_a_picture_with_nothing_to_show_is_named_with_its_reason(text: str) -> None:
    left = re.findall(r"Left out, <em>([^<]+)</em>: ([^<]+)", text)
    assert [title.partition(",")[0] for title, _ in left] == [
        "Extra time to first token by transport",
        "Rate of a pull of 390",
    ]
    assert "the arm none (serving without a transfer) was not run" in left[0][1]
    assert "no series was measured with pieces of two sizes" in left[1][1]


def test_links_lead_to_files_beside_the_page(page_path: Path, text: str) -> None:
    links = [link for link in Page(text).links if not link.startswith("#")]
    names = ("ratios", "pull_time", "post_split", "launches")
    drawn = [f"figures/{n}.{form}" for n in names for form in ("png", "svg", "csv")]
    assert links == [*drawn, "verdict.csv", "../cells.csv"]
    assert all((page_path.parent / link).is_file() for link in links)
    ids = Page(text).ids
    assert all(link[1:] in ids for link in Page(text).links if link.startswith("#"))


def test_colours_of_the_pictures_follow_the_theme(text: str) -> None:
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert "var(--ink)" in svg
    assert "var(--c0)" in text
    styles = re.findall(r'style="([^"]*)"', svg)
    assert not any("#1b1f24" in style or "#0173b2" in style for style in styles)


def test_refusals_roads_and_quotes_are_shown_escaped(text: str) -> None:
    assert "Road expected: rc_mlx5, rc_verbs; seen: tcp." in text
    assert "a &lt;b&gt; &amp; c" in text
    assert "a <b>" not in text
    assert "<code>roce,tcp</code>" in text
    row = next(line for line in text.splitlines() if 'scope="row">protocol table<' in line)
    for part in ("agrees", "8 of 8", "cma", "decode-0.log:41"):
        assert part in row


def test_provenance_has_versions_commit_and_overrides(text: str) -> None:
    for part in ("1.5.1 (24)", "1.23.0 (24)", "abc123 (24)", "transport=[shm,tcp,roce]"):
        assert part in text


def test_page_without_a_proven_cell_says_why(tmp_path: Path) -> None:
    page = Page(build(tmp_path, ["roce"], {"roce"}).read_text())
    assert page.paragraphs[0].startswith("No number for roce: roce was refused")


def test_many_values_of_a_fact_are_given_as_their_number() -> None:
    facts = {"boot_id": [{"value": f"b{i}", "cells": 1} for i in range(6)]}
    rows = report.provenance_rows(facts)
    assert rows[0].texts[-1] == "and 2 other values"
    assert len(rows[0].texts) == 5


def test_the_command_is_one_that_a_shell_takes() -> None:
    words = ["study=smoke", "transport=[shm,tcp]", "engine.num_threads=0", "seed=2"]
    assert report.command_line(words) == (
        "uv run snakemake --cores 1 all --config study=smoke 'transport=[shm,tcp]' seed=2"
        " hydra=engine.num_threads=0"
    )
    assert report.command_line([]) == "uv run snakemake --cores 1 all"
    two = report.command_line(["engine.num_threads=0", "workload.pulls=3"])
    assert two.endswith("--config 'hydra=engine.num_threads=0 workload.pulls=3'")


def test_publishing_points_the_page_to_the_raw_files(text: str) -> None:
    assert "results/cells/" in text
    published = with_raw_link(text)
    assert 'href="raw.tar.xz"' in published
    assert with_raw_link(published) == published
    assert len(Page(published).ids) == len(set(Page(published).ids))
