"""Writes a resolved study as tracking reads it: one measured and one unmeasured cell."""

import json
from pathlib import Path

import pandas as pd

CELL = "tcp+threads0-p16384-b0-0123456789ab"
QUOTE = "software emulation | tcp/lo"


def write_study(folder: Path, outcome: str = "proven", **cell_json: object) -> dict[str, Path]:
    """Write one resolved study of one measured and one unmeasured cell."""
    cell = folder / "results" / "cells" / CELL
    (cell / "raw").mkdir(parents=True)
    arm = {"arm": "tcp+threads0", "transport": "tcp", "variant": "threads0"}
    identity = {
        "cell": CELL,
        **arm,
        "prompt_tokens": 16384,
        "block": 0,
        "launch": "tcp+threads0-b0",
    }
    (cell / "cell.json").write_text(json.dumps({**identity, **cell_json}))
    seen = {"outcome": outcome, "reason": "as seen", "quote": QUOTE, "attempt": 2}
    measured = {"measured_at": "2026-01-02T03:04:05Z"}
    (cell / "outcome.json").write_text(json.dumps({**seen, **measured}))
    earlier = cell / "attempts" / "1"
    earlier.mkdir(parents=True)
    (earlier / "outcome.json").write_text(json.dumps({"outcome": "refused"}))
    (cell / "raw" / "decode-0.log").write_text("a raw log")
    row = identity | {
        **{"outcome": outcome, "reason": "as seen", "road_expected": "tcp", "road_seen": "tcp"},
        **{"attempt": 2, "nixl_version": "1.5.1", "ucx_version": "1.23.0", "statistic": "median"},
        **{"pull_ms": 12.5, "post_ms": 3.0, "after_post_ms": 9.5, "goodput_gb_per_s": float("nan")},
        **{"descriptors": 4260, "n_pulls": 8, "n_dropped": 0},
    }
    planned = {**identity, "cell": "shm-p16384-b0-ba9876543210", "arm": "shm"}
    missing = planned | {"outcome": "not measured", "reason": "", "attempt": None}
    tables = folder / "tables"
    tables.mkdir()
    cells = pd.DataFrame([row, missing]).astype({"attempt": "Int64"})
    cells.to_parquet(tables / "cells.parquet")
    contrast = {"arm": "tcp+threads0", "baseline": "shm", "prompt_tokens": 16384}
    number = {"metric": "pull_ms", "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6}
    verdict = {**contrast, **number, "difference": None, "verdict": "slower"}
    pd.DataFrame([verdict]).to_csv(tables / "verdict.csv", index=False)
    report = folder / "report"
    (report / "figures").mkdir(parents=True)
    (report / "verdict.md").write_text("# tcp is slower\n")
    (report / "figures" / "pull.svg").write_text("<svg/>")
    planned_cells = [
        {**{k: v for k, v in r.items() if k in identity}, "arm": r["arm"]} for r in (row, missing)
    ]
    design = {"study": "loopback+tcp", "study_name": "loopback", "session": "july"}
    design |= {
        "cells": planned_cells,
        "baseline": "shm",
        "claims": {},
        "overrides": ["engine.env.HF_TOKEN=hush"],
    }
    path = folder / "results" / "loopback+tcp" / "design.json"
    path.parent.mkdir()
    path.write_text(json.dumps(design))
    results = folder / "results"
    return {"design_path": path, "results_dir": results, "tables_dir": tables, "report_dir": report}
