"""Tables and pictures to the page."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvroad.analysis.cost_model import read_tables
from kvroad.analysis.tables import DesignFile, FactValue, metrics_of, read_design
from kvroad.analysis.verdict import (
    RefusalRow,
    answers,
    blocks,
    break_even_notes,
    cache_note,
    cost_lines,
    flag_notes,
    held_out_note,
    how_costs_are_read,
    launch_value,
    order_note,
    percent,
    point_lines,
    records,
    refusal_text,
    refusals,
    rows_of,
    served_notes,
    tokens_text,
    warmup_note,
)
from kvroad.files import write_text
from kvroad.publish.page.raw_link import raw_note
from kvroad.publish.page.roads import provenance_rows, road_rows
from kvroad.publish.page.svg import inline_svg

__all__ = ["build", "command_line"]

_RUN = "uv run snakemake --cores 1 all"


@dataclass(frozen=True)
class Download:
    """A file beside the page; ``form`` is the ending that a picture's link is named by."""

    label: str
    href: str
    form: str


@dataclass(frozen=True)
class Figure:
    """A picture on the page, or why it is left out."""

    name: str
    title: str
    caption: str
    left_out: str = ""
    svg: str = ""
    links: tuple[Download, ...] = ()


def build(
    design_path: Path | str,
    cells_parquet: Path | str,
    witnesses_parquet: Path | str,
    provenance_json: Path | str,
    verdict_parquet: Path | str,
    claims_parquet: Path | str,
    cost_dir: Path | str,
    figures_dir: Path | str,
    manifest: Path | str,
    out: Path | str,
    downloads: Sequence[Path | str] = (),
) -> Path:
    """Write the page to ``out``.

    Parameters
    ----------
    figures_dir, manifest
        What `kvroad.publish.figures.build` wrote: SVG files are shown inline, in the manifest's
        order; a picture that was left out is named with its reason.
    downloads
        Files linked from the page by their path relative to it.
    """
    design, page_path = read_design(Path(design_path)), Path(out)
    cells, verdict = pd.read_parquet(cells_parquet), pd.read_parquet(verdict_parquet)
    costs = read_tables(cost_dir)
    facts = json.loads(Path(provenance_json).read_text(encoding="utf-8"))
    pictures = json.loads(Path(manifest).read_text(encoding="utf-8"))
    context = _answer_context(verdict, cells, design) | {
        "facts": _key_facts(cells, facts, design),
        "claims": records(pd.read_parquet(claims_parquet)),
        "claims_setup": _setup(design),
        "costs": [("pull", cost_lines(costs)), ("post", cost_lines(costs, "post_ms"))],
        "cost_points": point_lines(costs),
        "break_even": break_even_notes(costs),
        "held_out": held_out_note(costs),
        "cost_method": how_costs_are_read(),
        "figures": [_figure(p, Path(figures_dir), page_path) for p in pictures],
        "roads": road_rows(cells, pd.read_parquet(witnesses_parquet), design),
        "provenance": provenance_rows(facts),
        "links": [_link(Path(path), page_path) for path in downloads],
        "raw": Markup(raw_note(is_published=False)),
    }
    environment = Environment(
        loader=PackageLoader("kvroad.publish.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(context)
    return write_text(page_path, page.lstrip() + "\n")


def _answer_context(
    verdict: pd.DataFrame, cells: pd.DataFrame, design: DesignFile
) -> dict[str, Any]:
    """Return the part of the template's variables that cells and verdict alone give."""
    counts = cells["outcome"].value_counts()
    missing = int(counts.get("not measured", 0))
    tables = blocks(verdict, cells, design)
    return {
        "study": design.study,
        "answers": answers(verdict, cells, design),
        "overrides": design.overrides,
        "command": command_line(design.overrides),
        "main_blocks": [block for block in tables if block.metric.is_main],
        "more_blocks": [block for block in tables if not block.metric.is_main],
        "tokens": [tokens_text(t) for t in design.prompt_tokens],
        "level": percent(1 - design.alpha),
        "alpha": f"{design.alpha:g}",
        "quoted_source": design.quoted.source if design.quoted else "",
        "sentences": verdict["sentence"].tolist(),
        "flags": [*flag_notes(verdict), *served_notes(cells)],
        "order": order_note(cells, design),
        "refused": [
            {"text": refusal_text(row), "quote": row["quote"]}
            for row in rows_of(refusals(cells), RefusalRow)
        ],
        "not_measured": f"{missing} planned cells are not measured." if missing else "",
        "method": _method(cells, design),
        "metrics": metrics_of(cells),
    }


def command_line(overrides: Sequence[str]) -> str:
    """Return the command that makes a study, its overrides quoted for a shell.

    Keys of the top level stand alone; all others go behind ``hydra=``.
    """
    alone = [o for o in overrides if o.partition("=")[0].isidentifier()]
    others = [o for o in overrides if o not in alone]
    words = [*alone, *([f"hydra={' '.join(others)}"] if others else [])]
    return " ".join([_RUN, *(["--config"] if words else []), *map(shlex.quote, words)])


def _key_facts(
    cells: pd.DataFrame, facts: Mapping[str, Sequence[FactValue]], design: DesignFile
) -> list[tuple[str, str]]:
    """Return what a reader asks first: how much is proven, where, with what, when."""
    counts = cells["outcome"].value_counts()
    others = ", ".join(f"{n} {word}" for word, n in counts.items() if word != "proven")
    proven = f"{counts.get('proven', 0)} of {len(cells)} cells proven"
    gpus = [name for name in cells["gpus"].dropna().unique() if name != "none"]
    cpus = [str(v["value"]) for v in facts.get("cpu", ())]
    times = sorted(cells["measured_at"].dropna())
    first, last = (times[0], times[-1]) if times else ("", "")
    start, end = (time[:16].replace("T", " ") for time in (first, last))
    shown_end = end[11:] if end[:10] == start[:10] else end
    rows = [
        ("Roads", f"{proven}; {others}" if others else proven),
        ("Host", f"{_host_names(cells)}{', '.join(gpus or cpus)}"),
        ("Model", design.model),
        ("Engine", design.engine),
        ("NIXL", ", ".join(cells["nixl_version"].dropna().unique())),
        ("UCX", ", ".join(cells["ucx_version"].dropna().unique())),
        ("Measured", f"{start} to {shown_end} UTC" if times else ""),
    ]
    return [(name, text) for name, text in rows if text]


def _host_names(cells: pd.DataFrame) -> str:
    """Return the names of several hosts, to stand before what they are; empty for one."""
    names = cells["host"].dropna().unique()
    return f"{', '.join(names)}: " if len(names) > 1 else ""


def _setup(design: DesignFile) -> list[tuple[str, str]]:
    """Return the publication's setup as texts, without the rules of matching."""
    setup = design.quoted.setup if design.quoted else {}
    return [(name.replace("_", " "), str(v)) for name, v in setup.items() if name != "match"]


def _method(cells: pd.DataFrame, design: DesignFile) -> list[str]:
    """Say what was done, from the tables alone, a sentence group per paragraph."""
    proven = cells[cells["outcome"] == "proven"]
    n_blocks = cells["block"].nunique()
    arms = f"{len(design.arms)} arm{'s' if len(design.arms) != 1 else ''}"
    planned = (
        f"Planned: {arms} ({', '.join(design.shown_arms)}), {n_blocks} launches of each,"
        f" prompt lengths {', '.join(tokens_text(t) for t in design.prompt_tokens)} tokens."
        " Every launch starts fresh processes; the arms of a block run next to each other, and"
        " only launches of one block, run and boot with equal versions are paired."
    )
    if proven.empty:
        return [planned]
    pulls = int(proven["n_pulls"].sum())
    values = (
        f"{pulls:,} measured pulls in proven cells. Each launch gives one value per metric:"
        f" {launch_value(cells)}{'' if 'n_requests' in cells else ' of all ranks'}."
        f" {warmup_note(cells)}"
    )
    return [text for text in (planned, values, _shapes(proven), cache_note(cells)) if text]


def _shapes(proven: pd.DataFrame) -> str:
    """Say how a pull of each variant is cut; variants that are cut alike stand together."""
    sizes = proven.drop_duplicates(["variant", "prompt_tokens"]).dropna(subset="descriptors")
    alike: dict[str, list[str]] = {}
    for variant, rows in sizes.groupby("variant", sort=False):
        text = ", ".join(
            f"{row['descriptors']:,} of {row['descriptor_bytes']:,} bytes at"
            f" {tokens_text(row['prompt_tokens'])} tokens"
            for row in records(rows.sort_values("prompt_tokens"))
        )
        alike.setdefault(text, []).append(str(variant))
    shapes = "; ".join(f"{text} ({', '.join(names)})" for text, names in alike.items())
    return f"Descriptors of one pull, by variant: {shapes}."


def _figure(picture: dict[str, str], folder: Path, page: Path) -> Figure:
    name, title = picture["name"], picture["title"]
    if picture["left_out"]:
        return Figure(name, title, picture["caption"], picture["left_out"])
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    files = [folder / f"{name}.{form}" for form in ("png", "svg", "csv")]
    return Figure(
        name,
        title,
        picture["caption"],
        svg=inline_svg(svg, name, f"{title}. {picture['alt']}"),
        links=tuple(_link(path, page) for path in files),
    )


def _link(path: Path, page: Path) -> Download:
    relative = Path(os.path.relpath(path, page.parent)).as_posix()
    return Download(relative, quote(relative), path.suffix[1:].upper())
