"""What a pull's time is made of: a start, so much per descriptor, so much per byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvroad.analysis.cost_model.break_even import break_even_frame
from kvroad.analysis.cost_model.fit import Fit, Launches, fit_cost
from kvroad.analysis.cost_model.predict import Prediction, whatif
from kvroad.analysis.cost_model.series import FITS, MEASURES, Series, as_moved, series_of
from kvroad.analysis.cost_model.tables import (
    PointRow,
    curves_frame,
    held_out_frame,
    models_frame,
    points_frame,
)
from kvroad.analysis.tables import DesignFile, read_design, write_table

__all__ = [
    "FITS",
    "TABLES",
    "CostTables",
    "Fit",
    "Launches",
    "PointRow",
    "Prediction",
    "Series",
    "as_moved",
    "build",
    "cost_tables",
    "fit_cost",
    "read_tables",
    "whatif",
]

# Field of `CostTables` to the name of its files.
TABLES = {
    "models": "cost_model",
    "points": "cost_points",
    "break_even": "cost_break_even",
    "held_out": "cost_held_out",
    "curves": "cost_curves",
}


@dataclass(frozen=True)
class CostTables:
    """The tables of a study's cost model; see the functions that make each."""

    models: pd.DataFrame
    points: pd.DataFrame
    break_even: pd.DataFrame
    held_out: pd.DataFrame
    curves: pd.DataFrame


def cost_tables(cells: pd.DataFrame, design: DesignFile) -> CostTables:
    """Fit every series of a study and return its tables."""
    all_series = [s for measure in MEASURES for s in series_of(cells, design, measure)]
    return CostTables(
        models=models_frame(all_series, design.alpha),
        points=points_frame(all_series, design.alpha),
        break_even=break_even_frame(all_series, design.alpha),
        held_out=held_out_frame(all_series, design.alpha),
        curves=curves_frame(all_series),
    )


def build(cells_parquet: Path | str, design_path: Path | str, out_dir: Path | str) -> None:
    """Write each table (.parquet and .csv) into ``out_dir``."""
    tables = cost_tables(pd.read_parquet(cells_parquet), read_design(Path(design_path)))
    for field, name in TABLES.items():
        write_table(getattr(tables, field), Path(out_dir) / name)


def read_tables(folder: Path | str) -> CostTables:
    """Read the tables that `build` has written."""
    return CostTables(
        **{
            field: pd.read_parquet(Path(folder) / f"{name}.parquet")
            for field, name in TABLES.items()
        }
    )
