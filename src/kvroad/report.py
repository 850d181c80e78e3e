"""The page that answers: one self-contained HTML file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvroad.cost_model import CostTables, read_tables
from kvroad.tables import Design, metrics_of, read_design, write_text
from kvroad.verdict import (
    Block,
    answers,
    blocks,
    break_even_notes,
    cost_lines,
    flag_notes,
    held_out_note,
    how_costs_are_read,
    launch_value,
    percent,
    point_lines,
    records,
    refusal_text,
    refusals,
    tokens_text,
    warmup_note,
)

__all__ = ["build", "inline_svg", "provenance_rows", "road_rows"]

_CAPTIONS = {
    "pull_time": (
        "Time for one KV pull by prompt length and arm. Pull time is xfer: from issuing the pull"
        " to its completion, the post included."
    ),
    "post_split": (
        "The longest pull, split into post (the call that issues it) and after-post"
        " (xfer minus post: what is left once it is issued)."
    ),
    "rate": (
        "Rate of the largest pull by the bytes of a descriptor, as measured and as the cost model"
        " has it."
    ),
}
# More distinct values than this are shown as their number.
_MANY = 4


def build(
    design_path: Path | str,
    cells_parquet: Path | str,
    witnesses_parquet: Path | str,
    provenance_json: Path | str,
    verdict_parquet: Path | str,
    claims_parquet: Path | str,
    cost_dir: Path | str,
    figures: Sequence[Path | str],
    out: Path | str,
    downloads: Sequence[Path | str] = (),
) -> Path:
    """Write the page to ``out``.

    Parameters
    ----------
    figures
        SVG files, shown inline in this order.
    downloads
        Files linked from the page by their path relative to it.
    """
    design = read_design(Path(design_path))
    cells, verdict = pd.read_parquet(cells_parquet), pd.read_parquet(verdict_parquet)
    facts = json.loads(Path(provenance_json).read_text(encoding="utf-8"))
    context = _answer_context(verdict, cells, design) | {
        "claims": records(pd.read_parquet(claims_parquet)),
        **_cost_context(read_tables(cost_dir)),
        "figures": [_figure(Path(path), verdict, design) for path in figures],
        "roads": road_rows(cells, pd.read_parquet(witnesses_parquet), design),
        "provenance": provenance_rows(facts),
        "links": [_link(Path(path), Path(out)) for path in downloads],
    }
    environment = Environment(
        loader=PackageLoader("kvroad"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(context)
    return write_text(page + "\n", Path(out))


def _answer_context(verdict: pd.DataFrame, cells: pd.DataFrame, design: Design) -> dict[str, Any]:
    counts = cells["outcome"].value_counts()
    missing = int(counts.get("not measured", 0))
    return {
        "study": design.study,
        "answers": answers(verdict, cells, design),
        "counts": f"{counts.get('proven', 0)} of {len(cells)} cells have their road proven.",
        "overrides": design.overrides,
        "blocks": [_block(block) for block in blocks(verdict, cells, design)],
        "level": percent(1 - design.alpha),
        "alpha": f"{design.alpha:g}",
        "quoted_source": design.quoted.source if design.quoted else "",
        "sentences": verdict["sentence"].tolist(),
        "flags": flag_notes(verdict),
        "refused": [
            {"text": refusal_text(row), "quote": row["quote"]} for row in records(refusals(cells))
        ],
        "not_measured": f"{missing} planned cells are not measured." if missing else "",
        "method": _method(cells, design),
        "metrics": metrics_of(cells),
    }


def _cost_context(costs: CostTables) -> dict[str, Any]:
    return {
        "costs": [("pull", cost_lines(costs)), ("post", cost_lines(costs, "post_ms"))],
        "cost_points": point_lines(costs),
        "break_even": break_even_notes(costs),
        "held_out": held_out_note(costs),
        "cost_method": how_costs_are_read(),
    }


def _block(block: Block) -> dict[str, Any]:
    label = block.metric.label
    return {
        "title": label[0].upper() + label[1:],
        "unit": block.metric.unit,
        "better": "more is faster" if block.metric.is_higher_better else "less is faster",
        "tokens": [tokens_text(t) for t in block.prompt_tokens],
        "lines": block.lines,
    }


def _method(cells: pd.DataFrame, design: Design) -> str:
    """Say what was done, from the tables alone."""
    proven = cells[cells["outcome"] == "proven"]
    n_blocks = cells["block"].nunique()
    text = (
        f"Planned: {len(design.arms)} arms ({', '.join(design.arms)}), {n_blocks} launches of each,"
        f" prompt lengths {', '.join(tokens_text(t) for t in design.prompt_tokens)} tokens."
        " Every launch starts fresh processes; the arms of a block run next to each other, and"
        " only launches of one block, run and boot with equal versions are paired."
    )
    if proven.empty:
        return text
    sizes = proven.drop_duplicates(["variant", "prompt_tokens"]).dropna(subset="descriptors")
    shapes = "; ".join(
        f"{tokens_text(row['prompt_tokens'])} tokens ({row['variant']}): {row['descriptors']:,} of"
        f" {row['descriptor_bytes']:,} bytes"
        for row in records(sizes.sort_values(["variant", "prompt_tokens"]))
    )
    pulls = int(proven["n_pulls"].sum())
    return (
        f"{text} Descriptors of one pull: {shapes}. {pulls:,} measured pulls in proven cells."
        f" {warmup_note(cells)} Each launch gives one value per metric: {launch_value(cells)}"
        f"{' of all ranks' if 'n_requests' not in cells else ''}."
    )


def road_rows(cells: pd.DataFrame, witnesses: pd.DataFrame, design: Design) -> list[dict[str, Any]]:
    """Return per arm its proven cells, roads expected and seen, and a text per witness."""
    rows = []
    for arm in design.arms:
        own = cells[cells["arm"] == arm]
        rows.append(
            {
                "arm": arm,
                "proven": int((own["outcome"] == "proven").sum()),
                "planned": len(own),
                "ucx_tls": _distinct(own["ucx_tls"]),
                "expected": _distinct(own["road_expected"]),
                "seen": _distinct(own["road_seen"]),
                "witnesses": _witness_texts(witnesses[witnesses["arm"] == arm]),
            }
        )
    return rows


def _distinct(texts: pd.Series[str]) -> str:
    return "; ".join(dict.fromkeys(texts.dropna())) or "none"


def _witness_texts(witnesses: pd.DataFrame) -> list[str]:
    texts = []
    for (name, status), group in witnesses.groupby(["name", "status"], sort=False):
        first = group.fillna("").iloc[0]
        where = f" ({first['where']})" if first["where"] else ""
        seen = f", e.g. {first['seen']}" if first["seen"] else ""
        if status == "contradicts":
            seen += f" where {first['expected']} was expected"
        n = f"{len(group)} cell{'s' if len(group) != 1 else ''}"
        texts.append(f"{str(name).replace('_', ' ')}: {status} in {n}{seen}{where}")
    return texts


def provenance_rows(facts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return each fact with its distinct values; many values are given as their number."""
    rows = []
    for name, values in facts.items():
        texts = [f"{v['value']} ({v['cells']})" for v in values]
        if len(texts) > _MANY:
            texts = [*texts[:_MANY], f"and {len(texts) - _MANY} other values"]
        rows.append({"name": name, "texts": texts})
    return rows


def _figure(path: Path, verdict: pd.DataFrame, design: Design) -> dict[str, Any]:
    caption = _CAPTIONS.get(path.stem, path.stem)
    metrics = {"pull_time": ["pull_ms"], "post_split": ["post_ms", "after_post_ms"]}
    rows = verdict[verdict["metric"].isin(metrics.get(path.stem, []))]
    if path.stem == "post_split":
        with_data = rows.loc[rows["tested"] != "none", "prompt_tokens"]
        longest = with_data.max() if len(with_data) else max(design.prompt_tokens)
        rows = rows[rows["prompt_tokens"] == longest]
    alt = " ".join([caption, *rows["sentence"]])
    return {"svg": inline_svg(path.read_text(encoding="utf-8"), path.stem, alt), "caption": caption}


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """Return an SVG for the inside of a page: no prologue, ids of its own, text for readers."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    label = Markup('<svg role="img" aria-label="{}"').format(alt)
    return label + Markup(body.removeprefix("<svg"))


def _link(path: Path, page: Path) -> dict[str, str]:
    relative = Path(os.path.relpath(path, page.parent)).as_posix()
    return {"label": relative, "href": quote(relative)}
