rule write_design:
    output:
        design=TABLES / "design.json",
        study=TABLES / "study.json",
    log:
        LOGS / "write_design.log",
    params:
        design=design_facts(STUDY, DESIGN, SLUG),
        study=resolved(STUDY),
    message:
        "writing the design of {SLUG}"
    script:
        "../scripts/write_design.py"


rule tabulate_cells:
    input:
        receipts=RECEIPTS,
        design=rules.write_design.output.design,
    output:
        pulls=TABLES / "pulls.parquet",
        pulls_csv=TABLES / "pulls.csv",
        cells=TABLES / "cells.parquet",
        cells_csv=TABLES / "cells.csv",
        witnesses=TABLES / "witnesses.parquet",
        witnesses_csv=TABLES / "witnesses.csv",
        provenance=TABLES / "provenance.json",
    log:
        LOGS / "tabulate_cells.log",
    params:
        code=module_digest("analysis/tables", "proof", "evidence", "files"),
        tolerances=resolved(STUDY)["road"],
    message:
        "tabulating pulls and cells of {SLUG}"
    script:
        "../scripts/tabulate_cells.py"


rule contrast_arms:
    input:
        cells=rules.tabulate_cells.output.cells,
        design=rules.write_design.output.design,
    output:
        contrasts=TABLES / "contrasts.parquet",
        contrasts_csv=TABLES / "contrasts.csv",
        summary=TABLES / "launch_summary.parquet",
        summary_csv=TABLES / "launch_summary.csv",
    log:
        LOGS / "contrast_arms.log",
    params:
        code=module_digest("analysis/stats"),
    message:
        "contrasting the arms of {SLUG}"
    script:
        "../scripts/contrast_arms.py"


rule fit_cost_model:
    input:
        cells=rules.tabulate_cells.output.cells,
        design=rules.write_design.output.design,
    output:
        tables=[TABLES / f"{name}.parquet" for name in COST_TABLES],
        csv=[TABLES / f"{name}.csv" for name in COST_TABLES],
    log:
        LOGS / "fit_cost_model.log",
    params:
        code=module_digest("analysis/cost_model"),
    message:
        "fitting the cost model of {SLUG}"
    script:
        "../scripts/fit_cost_model.py"


rule judge_verdict:
    input:
        contrasts=rules.contrast_arms.output.contrasts,
        cells=rules.tabulate_cells.output.cells,
        design=rules.write_design.output.design,
    output:
        parquet=REPORT / "verdict.parquet",
        csv=REPORT / "verdict.csv",
        json=REPORT / "verdict.json",
        md=report(
            REPORT / "verdict.md",
            caption="../report/verdict.rst",
            category="Verdict",
        ),
    log:
        LOGS / "judge_verdict.log",
    params:
        code=module_digest(
            "analysis/verdict", "analysis/words", "analysis/stats", "files"
        ),
    message:
        "judging {SLUG}"
    script:
        "../scripts/judge_verdict.py"


rule judge_claims:
    input:
        verdict=rules.judge_verdict.output.parquet,
        cells=rules.tabulate_cells.output.cells,
        costs=rules.fit_cost_model.output.tables,
        design=rules.write_design.output.design,
    output:
        parquet=REPORT / "claims.parquet",
        csv=REPORT / "claims.csv",
    log:
        LOGS / "judge_claims.log",
    params:
        code=module_digest("analysis/verdict", "analysis/words", "analysis/cost_model"),
    message:
        "holding published claims against {SLUG}"
    script:
        "../scripts/judge_claims.py"
