"""The flags of a verdict as short notes, the same ones together."""

from __future__ import annotations

import pandas as pd

from kvroad.analysis.tables import MAIN_METRICS, DesignFile, metric
from kvroad.analysis.verdict.sentences import VerdictRow
from kvroad.analysis.words import percent, rows_of, tokens_text

__all__ = ["flag_notes", "launch_value", "order_note", "warmup_note"]


def flag_notes(verdict: pd.DataFrame) -> list[str]:
    """Return a note per flag of a main metric: withheld, drift, outliers, clock, spread.

    Notes that differ in the prompt length alone are put together; those of other metrics
    are counted.
    """
    names = [m.name for m in MAIN_METRICS]
    found: dict[tuple[str, str], list[int]] = {}
    n_others = 0
    for row in rows_of(verdict, VerdictRow):
        pair = f"{row['arm']} against {row['baseline']}"
        if row["withheld"]:
            why = f"withheld, since they differ in {row['withheld']}, which no variant declares"
            _add(found, pair, why, row["prompt_tokens"])
            continue
        texts = []
        if row["is_drifting"]:
            texts.append(_drift_text(row))
        if row["outliers"]:
            texts.append(f"launches that stand apart, kept in: {row['outliers']}")
        if row["is_quantised"]:
            texts.append(_grid_text(row))
        if row["is_uneven"]:
            texts.append("spreads differ between prompt lengths, the wider interval is given")
        if row["metric"] not in names:
            n_others += bool(texts)
            continue
        for text in texts:
            label = metric(row["metric"]).label
            _add(found, f"{pair}, {label}", text, row["prompt_tokens"])
    notes = [
        f"{who}, at {' and '.join(tokens_text(t) for t in tokens)} tokens: {what}."
        for (who, what), tokens in found.items()
    ]
    if n_others:
        rows = (
            "1 row of a further metric carries"
            if n_others == 1
            else (f"{n_others} rows of further metrics carry")
        )
        notes.append(f"{rows} flags too; verdict.csv has them.")
    return notes


def _add(found: dict[tuple[str, str], list[int]], who: str, what: str, tokens: int) -> None:
    places = found.setdefault((who, what), [])
    if tokens not in places:
        places.append(tokens)


def _grid_text(row: VerdictRow) -> str:
    if row["statistic"] == "mean":
        return (
            "vLLM sees that a pull has ended once in a step of decode, about "
            f"{row['grid']:.3g} ms here, intervals widened by it"
        )
    return f"times on a grid of {row['grid']:g} ms, intervals widened by it"


def _drift_text(row: VerdictRow) -> str:
    unit = "" if row["tested"] == "ratio" else f" {row['unit']}"
    how = "by a factor of" if row["tested"] == "ratio" else "by"
    return (
        f"values drifted {how} {row['drift']:.3g}{unit} from the first to the last launch"
        f" ({row['drift_low']:.3g} to {row['drift_high']:.3g}), as much as the arms differ or more"
    )


def order_note(cells: pd.DataFrame, design: DesignFile) -> str:
    """Return whether the cells ran in the planned order, in how many runs and boots."""
    ran = cells[cells["executed_order"].notna()].sort_values("executed_order")
    if ran.empty:
        return "No cell was run."
    n, moved = len(ran), _moved(ran, design)
    if moved:
        text = f"{n - len(moved)} of {n} cells ran in their planned place, {moved[0]} did not"
        repeated = int((ran["attempt"].fillna(1) > 1).sum()) if "attempt" in ran else 0
        text += f" ({repeated} of all are later attempts)" if repeated else ""
    else:
        text = f"All {n} cells that ran did so in the planned order"
    runs, boots, hosts = (ran[c].nunique() for c in ("run_id", "boot_id", "host"))
    where = "the host" if hosts < 2 else f"{hosts} hosts"
    return (
        f"{text}, in {runs} uninterrupted run{'s' if runs != 1 else ''} on"
        f" {boots} boot{'s' if boots != 1 else ''} of {where}."
    )


def _moved(ran: pd.DataFrame, design: DesignFile) -> list[str]:
    """Return the cells that did not run in their planned place on their host."""
    moved = []
    for _, of_host in ran.groupby("host", dropna=False, sort=False):
        has_run = set(of_host["cell"])
        planned = [c.cell for c in design.cells if c.cell in has_run]
        moved += [a for a, b in zip(of_host["cell"], planned, strict=True) if a != b]
    return moved


def warmup_note(cells: pd.DataFrame) -> str:
    """Return the declared rule of the warm-up and how many rows it left out; empty for none."""
    proven = cells[cells["outcome"] == "proven"]
    if proven.empty:
        return ""
    if "n_requests" in cells:
        return _served_warmup_note(proven)
    n, dropped = int(proven["n_warmup"].sum()), int(proven["n_dropped"].sum())
    measured = int(proven["n_pulls"].sum())
    share = percent(round(n / (n + measured), 3)) if n + measured else "0 %"
    return (
        "Warm-up, declared before the run: the first workload.warmup_pulls pulls of each cell."
        f" Its {n:,} pulls ({share} of all) are kept in the table of pulls and are in no number;"
        f" {dropped:,} measured pulls were dropped as data errors, kept and counted."
    )


def _served_warmup_note(proven: pd.DataFrame) -> str:
    n, measured = int(proven["n_warmup"].sum()), int(proven["n_pulls"].sum())
    requests, failed = (int(proven[c].sum()) for c in ("n_requests", "n_failed_requests"))
    return (
        "Warm-up, declared before the run: the first workload.warmup_pulls requests of each cell."
        f" Its {n:,} transfers are kept in the raw files and are in no number."
        f" Measured were {requests:,} requests with {measured:,} transfers;"
        f" {failed:,} requests failed and are in no number."
    )


def launch_value(cells: pd.DataFrame) -> str:
    """Say what the value of a launch is."""
    if "n_requests" in cells:
        return "the mean over its transfers, and the median over its requests"
    return "the median of its pulls"
