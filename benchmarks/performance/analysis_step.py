"""One step of the analysis in a process of its own: STEP SLUG, in a checkout."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path


def main(step: str, slug: str) -> None:
    """Run what the script of that name runs, with the imports that it has."""
    tables, report = Path("results/studies") / slug, Path("reports") / slug
    plan = tables / "design.json"
    cells = tables / "cells.parquet"
    if step == "tabulate_cells":
        from kvroad.analysis import tables as module
        from kvroad.proof.judge_again import judge_again
        from kvroad.study.fields import RoadTolerances

        planned = [cell["cell"] for cell in json.loads(plan.read_text())["cells"]]
        judge_again(planned, Path("results"), RoadTolerances(), print)
        module.build(design_path=plan, results_dir=Path("results"), out_dir=tables)
    elif step == "contrast_arms":
        from kvroad.analysis import stats

        stats.build(cells_parquet=cells, design_path=plan, out_dir=tables)
    elif step == "fit_cost_model":
        from kvroad.analysis import cost_model

        cost_model.build(cells_parquet=cells, design_path=plan, out_dir=tables)
    elif step == "judge_verdict":
        from kvroad.analysis import verdict

        contrasts = tables / "contrasts.parquet"
        verdict.build(contrasts, cells, plan, report)
    elif step == "judge_claims":
        from kvroad.analysis.verdict import claims

        claims.build(report / "verdict.parquet", cells, tables, plan, report)
    elif step == "plot_figures":
        from kvroad.publish import figures

        summary = tables / "launch_summary.parquet"
        figures.build(
            cells_parquet=cells,
            summary_parquet=summary,
            verdict_parquet=report / "verdict.parquet",
            cost_dir=tables,
            design_path=plan,
            out_dir=report / "figures",
            manifest=tables / "figures.json",
        )
    elif step == "write_report":
        from kvroad.publish import page as module

        module.build(
            design_path=plan,
            cells_parquet=cells,
            witnesses_parquet=tables / "witnesses.parquet",
            provenance_json=tables / "provenance.json",
            verdict_parquet=report / "verdict.parquet",
            claims_parquet=report / "claims.parquet",
            cost_dir=tables,
            figures_dir=report / "figures",
            manifest=tables / "figures.json",
            out=report / "index.html",
        )
    elif step == "log":
        _log(plan, tables, report)
    else:
        raise SystemExit(f"no step {step}")


def _log(plan: Path, tables: Path, report: Path) -> None:
    from kvroad.publish.tracking import log_study

    done = log_study(plan, Path("results"), tables, report, "sqlite:///bench.db", "bench")
    with sqlite3.connect("bench.db") as database:
        names = ["runs", "params", "metrics", "latest_metrics", "tags"]
        rows = {n: database.execute(f"select count(*) from {n}").fetchone()[0] for n in names}
    size = sum(path.stat().st_size for path in Path().glob("bench.db*"))
    print(
        json.dumps(
            {
                "created": done.created,
                "unchanged": done.unchanged,
                "rows": rows,
                "database_bytes": size,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
