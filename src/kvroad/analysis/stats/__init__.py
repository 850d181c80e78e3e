"""Launch values to statements: contrasts, their intervals and flags, means, power."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvroad.analysis.stats.contrasts import CONTRAST_COLUMNS, ContrastRow, contrasts_frame
from kvroad.analysis.stats.estimates import Estimate, holm, pooled_t, welch
from kvroad.analysis.stats.summary import launch_summary
from kvroad.analysis.tables import read_design, write_table

__all__ = [
    "CONTRAST_COLUMNS",
    "ContrastRow",
    "Estimate",
    "build",
    "contrasts_frame",
    "holm",
    "launch_summary",
    "pooled_t",
    "welch",
]


def build(cells_parquet: Path | str, design_path: Path | str, out_dir: Path | str) -> None:
    """Write ``contrasts`` and ``launch_summary`` (.parquet and .csv) into ``out_dir``."""
    design, out = read_design(Path(design_path)), Path(out_dir)
    cells = pd.read_parquet(cells_parquet)
    write_table(contrasts_frame(cells, design), out / "contrasts")
    write_table(launch_summary(cells, design.alpha), out / "launch_summary")
