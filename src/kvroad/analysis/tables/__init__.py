"""Raw cell folders to tables: pulls, cells, witnesses, provenance."""

from __future__ import annotations

from pathlib import Path

from kvroad.analysis.tables.cells import (
    NOT_PROVEN,
    FactValue,
    cells_frame,
    cells_table,
    provenance,
    pulls_frame,
    pulls_table,
    read_cells,
    witnesses_table,
)
from kvroad.analysis.tables.clock_grid import common_grid, grid_of
from kvroad.analysis.tables.design_file import (
    ArmFacts,
    DesignCell,
    DesignFile,
    PublishedClaim,
    Quoted,
    margin,
    parse_design,
    read_design,
)
from kvroad.analysis.tables.metrics import (
    IN_FLIGHT,
    MAIN_METRICS,
    METRICS,
    ONE_AT_A_TIME,
    Metric,
    metric,
    metrics_of,
    statistic_of,
)
from kvroad.analysis.tables.write import write_table
from kvroad.evidence.serving import CACHE_CHECKS, NOT_CHECKED
from kvroad.files import write_json
from kvroad.study.kinds import ENGINES

__all__ = [
    "CACHE_CHECKS",
    "IN_FLIGHT",
    "MAIN_METRICS",
    "METRICS",
    "NOT_CHECKED",
    "NOT_PROVEN",
    "ONE_AT_A_TIME",
    "ArmFacts",
    "DesignCell",
    "DesignFile",
    "FactValue",
    "Metric",
    "PublishedClaim",
    "Quoted",
    "build",
    "cells_frame",
    "common_grid",
    "grid_of",
    "margin",
    "metric",
    "metrics_of",
    "parse_design",
    "provenance",
    "pulls_frame",
    "read_design",
    "statistic_of",
    "write_table",
]


def build(design_path: Path | str, results_dir: Path | str, out_dir: Path | str) -> None:
    """Write ``pulls``, ``cells`` and ``witnesses`` (.parquet, .csv) and ``provenance.json``.

    Parameters
    ----------
    results_dir
        Folder whose ``cells/<cell>/`` hold ``cell.json``, ``outcome.json`` and ``raw/``.
    """
    design, out = read_design(Path(design_path)), Path(out_dir)
    folders = read_cells(design.cells, Path(results_dir))
    pulls = pulls_table(folders, design.study)
    write_table(pulls, out / "pulls")
    # The first designs name no engine: they are of the replay.
    is_served = bool(design.engine) and ENGINES[design.engine].serves
    cells = cells_table(folders, pulls, design.study, design.kv_layout, is_served=is_served)
    write_table(cells, out / "cells")
    write_table(witnesses_table(folders), out / "witnesses")
    write_json(out / "provenance.json", provenance(folders), sort_keys=False, allow_nan=False)
