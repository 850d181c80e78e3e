"""Frames to pictures: SVG and PNG, each with its data as CSV beside it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvroad.analysis.cost_model import read_tables
from kvroad.analysis.tables import read_design
from kvroad.files import write_json
from kvroad.publish.figures.launches import launches_picture
from kvroad.publish.figures.picture import Picture, Tables, save
from kvroad.publish.figures.pulls import pulls_picture, split_picture
from kvroad.publish.figures.rate import rate_picture
from kvroad.publish.figures.ratios import ratios_picture
from kvroad.publish.figures.ttft import ttft_picture

__all__ = ["PICTURES", "Picture", "Tables", "build", "rate_picture", "save"]

PICTURES = (
    ratios_picture,
    pulls_picture,
    split_picture,
    ttft_picture,
    rate_picture,
    launches_picture,
)
"""What is drawn of a study, in the page's order."""


def build(
    cells_parquet: Path | str,
    summary_parquet: Path | str,
    verdict_parquet: Path | str,
    cost_dir: Path | str,
    design_path: Path | str,
    out_dir: Path | str,
    manifest: Path | str,
) -> list[Path]:
    """Write each picture's ``.svg``, ``.png`` and ``.csv`` into ``out_dir``.

    ``manifest`` lists all of them as JSON: ``name``, ``title``, ``caption``, ``alt``, and
    ``left_out`` with the reason where a picture has nothing to show and so has no file.
    """
    tables = Tables(
        pd.read_parquet(cells_parquet),
        pd.read_parquet(summary_parquet),
        pd.read_parquet(verdict_parquet),
        read_tables(cost_dir),
        read_design(Path(design_path)),
    )
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    pictures = [picture(tables) for picture in PICTURES]
    drawn = [path for picture in pictures for path in save(picture, out)]
    names = ("name", "title", "caption", "alt", "left_out")
    rows = [{n: getattr(p, n) for n in names} for p in pictures]
    write_json(Path(manifest), rows, sort_keys=False, allow_nan=False)
    return drawn
