"""docs/scale.md: what large numbers of cells take, extrapolated from what was measured."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.performance.pages import markdown_table

__all__ = ["scale_page"]

CELLS, HOSTS, NIGHTS, CELLS_PER_NIGHT = 100_000, 50, 365, 24


def scale_page(data: dict[str, Any]) -> str:
    """Return the page of what large numbers of cells take, extrapolated from what was measured."""
    if not {"analysis", "tracking", "nothing_to_do"} <= set(data):
        return "# Scale\n\nNot measured yet: `uv run python -m benchmarks.performance`.\n"
    sizes, rows = data["analysis"]["bytes"], data["analysis"]["rows"]
    n, steps = sizes["cells"], [r for r in rows if r["cells"] == sizes["cells"]]
    counts = sorted({r["cells"] for r in rows})
    cpu = {k: sum(r["cpu_s"] for r in rows if r["cells"] == k) for k in counts}
    rss = {k: max(r["rss_bytes"] for r in rows if r["cells"] == k) for k in counts}
    per_cell_s = (cpu[counts[-1]] - cpu[counts[-2]]) / (counts[-1] - counts[-2])
    per_cell_rss = (rss[counts[-1]] - rss[counts[-2]]) / (counts[-1] - counts[-2])
    track = data["tracking"]["passes"]
    db_rows = sum(track[0]["rows"].values()) / n
    yearly = HOSTS * NIGHTS * CELLS_PER_NIGHT
    nothing = data["nothing_to_do"]
    dag_s = (median(nothing["cpu_s"]) - data["imports"]["dry_run_cpu_s"]) / nothing["cells"]

    def column(cells: int) -> list[str]:
        return [
            f"{sizes['files_per_cell'] * cells:,.0f}",
            f"{sizes['bytes_per_cell'] * cells / 1e9:,.1f} GB",
            f"{sizes['disk_bytes_per_cell'] * cells / 1e9:,.1f} GB",
            f"{sizes['table_bytes'] / n * cells / 1e9:,.2f} GB",
            f"{db_rows * cells / 1e6:,.1f} million",
            f"{track[0]['database_bytes'] / n * cells / 1e9:,.2f} GB",
            f"{track[0]['cpu_s'] / n * cells / 60:,.0f} min",
        ]

    names = [
        "files of cells",
        "bytes of cells",
        "the same on disk",
        "tables, where every study has its own",
        "rows in MLflow's database",
        "size of that database",
        "logging to it, once (CPU)",
    ]
    one = 100_000
    lines = [
        "# Scale",
        "",
        "Written by the same command as [performance.md](performance.md). Measured are up to"
        f" {n:,} synthetic cells of 100 pulls on one machine; everything on this page is"
        " **extrapolated** from that growth, taken as linear, and was not run.",
        "",
        f"A year: {HOSTS} hosts, a study of {CELLS_PER_NIGHT} cells each night on each,"
        f" {yearly:,} cells, each its own study's.",
        "",
        *markdown_table(
            ["", f"{CELLS:,} cells", f"a year, {yearly:,} cells"],
            [[k, a, b] for k, a, b in zip(names, column(CELLS), column(yearly), strict=True)],
        ),
        f"One study of {one:,} cells, in place of many small ones, would take"
        f" {per_cell_s * one / 60:.0f} min of CPU from raw files to the report and"
        f" {(rss[n] + per_cell_rss * (one - n)) / 1e9:.1f} GB of memory, and"
        f" {dag_s * one / 60:.0f} min of CPU to find that there is nothing to do. A night's study of"
        f" {CELLS_PER_NIGHT} cells costs what the smallest size costs: {cpu[counts[0]]:.0f} s of CPU"
        f" with {rss[counts[0]] / 1e6:.0f} MB, so {HOSTS} of them in a night"
        f" {HOSTS * cpu[counts[0]] / 60:.0f} min on one core.",
        "",
        "## What breaks first",
        "",
        f"1. **Inodes and small files.** A cell is {sizes['files_per_cell']:.0f} files of"
        f" {sizes['bytes_per_cell'] / sizes['files_per_cell'] / 1e3:.1f} kB in the mean, on disk"
        f" {sizes['disk_bytes_per_cell'] / sizes['bytes_per_cell']:.1f} times their bytes: a quota of"
        f" a million files is full after {1e6 / sizes['files_per_cell']:,.0f} cells. `kvroad publish`"
        " packs the raw files of a study into one archive; cells that were published may go.",
        "2. **One study with everything in it.** Snakemake builds the whole graph at each start, and"
        " tables hold all pulls in memory. Keep a study to some thousand cells: one for each night,"
        " or each host.",
        "3. **SQLite.** MLflow's database takes one writer at a time; hosts that log at once wait for"
        " each other. `tracking.uri` may name a server with PostgreSQL behind it; this page has no"
        " measurement of one.",
        "",
        f"The most expensive step at {n:,} cells is"
        f" {max(steps, key=lambda r: r['cpu_s'])['step']}"
        f" ({max(r['cpu_s'] for r in steps):.1f} s of CPU).",
        "",
    ]
    return "\n".join(lines).rstrip() + "\n"
