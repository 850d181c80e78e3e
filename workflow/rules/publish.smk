rule plot_figures:
    input:
        cells=rules.tabulate_cells.output.cells,
        summary=rules.contrast_arms.output.summary,
        verdict=rules.judge_verdict.output.parquet,
        costs=rules.fit_cost_model.output.tables,
        design=rules.write_design.output.design,
    output:
        # A folder, since a picture with nothing to show is left out of it.
        folder=report(
            directory(REPORT / "figures"),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        manifest=TABLES / "figures.json",
    log:
        LOGS / "plot_figures.log",
    params:
        code=module_digest(
            "files",
            "publish/figures",
            "publish/palette",
            "analysis/words",
            "analysis/verdict",
            "analysis/cost_model",
        ),
    message:
        "plotting {SLUG}"
    script:
        "../scripts/plot_figures.py"


rule write_report:
    input:
        cells=rules.tabulate_cells.output.cells,
        witnesses=rules.tabulate_cells.output.witnesses,
        provenance=rules.tabulate_cells.output.provenance,
        verdict=rules.judge_verdict.output.parquet,
        verdict_files=[
            rules.judge_verdict.output.md,
            rules.judge_verdict.output.csv,
            rules.judge_verdict.output.json,
        ],
        claims=rules.judge_claims.output.parquet,
        claims_csv=rules.judge_claims.output.csv,
        costs=rules.fit_cost_model.output.tables,
        costs_csv=rules.fit_cost_model.output.csv,
        design=rules.write_design.output.design,
        study=rules.write_design.output.study,
        figures=rules.plot_figures.output.folder,
        manifest=rules.plot_figures.output.manifest,
    output:
        page=report(
            REPORT / "index.html",
            caption="../report/page.rst",
            category="Report",
        ),
        study=REPORT / "study.json",
        cells=REPORT / "cells.csv",
        costs=[REPORT / f"{name}.csv" for name in COST_TABLES],
    log:
        LOGS / "write_report.log",
    params:
        code=module_digest(
            "files",
            "publish/page",
            "publish/palette",
            "analysis/words",
            "analysis/verdict",
            "analysis/cost_model",
        ),
    message:
        "writing the report of {SLUG}"
    script:
        "../scripts/write_report.py"


rule log_mlflow:
    input:
        cells=rules.tabulate_cells.output.cells,
        verdict=rules.judge_verdict.output.parquet,
        page=rules.write_report.output.page,
        design=rules.write_design.output.design,
    output:
        marker=TRACKING_MARKER,
    log:
        LOGS / "log_mlflow.log",
    params:
        code=module_digest("publish/tracking"),
    message:
        "logging {SLUG} to MLflow"
    script:
        "../scripts/log_mlflow.py"


# Last, so that every table and page exists when it fails: it is what makes the exit
# status of a study with an unproven road differ from 0.
rule gate:
    input:
        cells=rules.tabulate_cells.output.cells_csv,
        page=rules.write_report.output.page,
    output:
        passed=TABLES / "gate.json",
    log:
        LOGS / "gate.log",
    priority: -1
    message:
        "checking that every road of {SLUG} is proven"
    script:
        "../scripts/gate.py"
