"""Show what the statistics can and cannot do: simulated studies with known truth, as a page.

python benchmarks/statistics.py --studies 20000 --fits 1000 --seed 1 --out docs/statistics.md
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.simulate import (
    DRIFT,
    NOISES,
    PROMPTS,
    SD,
    SLOW_CHANCE,
    SLOW_FACTOR,
    UNEVEN,
    Truth,
    simulate,
)
from benchmarks.simulate_costs import COSTS, CUTS, PULL_BYTES, simulate_fits
from kvroad.analysis.stats.power import chance_of_difference, chance_of_same
from kvroad.files import write_text

RATIOS = (1.0, 1.03, 1.15)
LAUNCHES = (4, 6, 8, 10)
# In these the intervals are to cover the truth in 93 to 97 % of all comparisons.
TARGETED = ("normal", "heavy tails", "drift")
COVERAGE = (0.93, 0.97)
ALPHA, MARGIN = 0.05, 0.05
MISFITS = (0.0, 0.05)
# Both arms vary, and by as much.
PAIR_SD = SD * math.sqrt(2)


def truths() -> list[Truth]:
    """Return the truth of every row of the page: two arms each, and four arms for A/A."""
    of_two = [Truth(r, noise, n) for noise in NOISES for r in RATIOS for n in LAUNCHES]
    return of_two + [Truth(1.0, noise, n, 4) for noise in TARGETED for n in LAUNCHES]


def missed(rows: pd.DataFrame) -> list[str]:
    """Return each target that is missed by more than three standard errors, as a sentence."""
    found = []
    for row in rows[rows["noise"].isin(TARGETED)].to_dict("records"):
        where = f"{row['noise']}, ratio {row['ratio']:g}, {row['launches']} launches"
        coverage, error = row["coverage"], 3 * row["coverage_error"]
        if coverage + error < COVERAGE[0] or coverage - error > COVERAGE[1]:
            found.append(f"{where}: coverage is {_percent(row, 'coverage')}")
        is_false = row["ratio"] == 1.0
        if is_false and row["false_rate"] - 3 * row["false_rate_error"] > ALPHA:
            found.append(f"{where}: the false rate of a study is {_percent(row, 'false_rate')}")
    slow = rows[rows["noise"] == "slow launches"]
    still = rows[(rows["noise"] == "normal") & (rows["n_arms"] == 2)]
    if slow["outlier_flag"].min() <= 3 * still["outlier_flag"].max():
        found.append("the outlier flag does not rise with slow launches")
    return found


def _percent(row: dict[str, object], name: str) -> str:
    return f"{100 * float(str(row[name])):.1f} ± {100 * float(str(row[f'{name}_error'])):.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _by_launches(rows: pd.DataFrame, name: str, keys: Sequence[str]) -> list[list[str]]:
    """Return a row per combination of keys with a column for each number of launches."""
    lines = []
    for key, group in rows.groupby(list(keys), sort=False):
        cells = group.set_index("launches").to_dict("index")
        texts = [_percent(cells[n], name) for n in LAUNCHES]
        lines.append([*(f"{k:g}" if isinstance(k, float) else str(k) for k in key), *texts])
    return lines


def page(rows: pd.DataFrame, fits: pd.DataFrame, n: int, n_fits: int, seed: int) -> str:
    """Return the page in Markdown; ``fits`` are of `simulate_fits`, ``n_fits`` of each."""
    two = rows[rows["n_arms"] == 2]
    targeted, equal = two[two["noise"].isin(TARGETED)], two[two["ratio"] == 1.0]
    numbers = [f"{k} launches" for k in LAUNCHES]
    faults = missed(rows)
    lines = [
        *_head(n, n_fits, seed),
        "## Targets",
        "",
        "- Coverage of 95 % intervals between 93 and 97 % under normal noise, heavy tails and"
        " drift; with slow launches in one arm the flag must rise instead.",
        "- At most 5 % of A/A studies with any false difference, after Holm's correction.",
        "",
        *([f"**Missed:** {fault}." for fault in faults] or ["All of them are met."]),
        "",
        "## Coverage of the true ratio (%)",
        "",
        *_table(
            ["noise", "true ratio", *numbers],
            _by_launches(targeted, "coverage", ["noise", "ratio"]),
        ),
        "## A/A studies with any false difference (%)",
        "",
        *_table(
            ["noise", "comparisons", *numbers],
            [
                [row[0], str((int(row[1]) - 1) * PROMPTS), *row[2:]]
                for row in _by_launches(
                    rows[(rows["ratio"] == 1.0) & rows["noise"].isin(TARGETED)],
                    "false_rate",
                    ["noise", "n_arms"],
                )
            ],
        ),
        *_power_lines(two),
        *_flag_lines(two, equal, numbers),
        *_limits_lines(two, numbers),
        *_cost_lines(fits, n_fits),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _head(n: int, n_fits: int, seed: int) -> list[str]:
    command = f"python benchmarks/statistics.py --studies {n} --fits {n_fits} --seed {seed}"
    return [
        "# What the statistics can show",
        "",
        "This page is written by a program; every number in it comes from this command:",
        "",
        "```",
        f"{command} --out docs/statistics.md",
        "```",
        "",
        f"Each row is {n:,} simulated studies with a known truth, judged with the product's"
        " formulas. Numbers are percentages ± their Monte Carlo standard error. A study has"
        f" {PROMPTS} prompt lengths, arms in the balanced order of the design, and launch values"
        f" that vary by {100 * SD:g} % (standard deviation of their log; a log ratio varies by"
        f" {100 * PAIR_SD:.1f} %).",
        "",
        "- normal: nothing else.",
        "- heavy tails: Student's t with 3 degrees of freedom, of the same variance.",
        f"- drift: every value grows by {100 * DRIFT:g} % from the first launch to the last.",
        f"- slow launches: a launch of the arm, never of the baseline, takes {SLOW_FACTOR:g} times"
        f" as long with a chance of {100 * SLOW_CHANCE:g} %. The truth is that of the others.",
        f"- uneven spread: {', '.join(f'{u:g}' for u in UNEVEN)} times the spread at the three"
        " prompt lengths.",
        "",
        "The method: paired t on log ratios within blocks, variance pooled over prompt lengths,"
        " Holm over the comparisons of a metric. One thing is added to the textbook's formula:"
        " where Bartlett's test calls the spreads of the prompt lengths uneven at the 10 % level,"
        " the interval is the wider of the pooled and the prompt's own.",
        "",
    ]


def _power_lines(two: pd.DataFrame) -> list[str]:
    rows = []
    for row in two[two["noise"].isin(("normal", "heavy tails"))].to_dict("records"):
        n, ratio = int(row["launches"]), float(row["ratio"])
        found = chance_of_difference(PAIR_SD, n, ratio, ALPHA, PROMPTS, PROMPTS)
        same = chance_of_same(PAIR_SD, n, MARGIN, ALPHA, PROMPTS, ratio)
        promised = ["", ""]
        if row["noise"] == "normal":
            promised = [f"{100 * found:.1f}" if ratio > 1 else "", f"{100 * same:.1f}"]
        words = _percent(row, "shown"), _percent(row, "same")
        start = row["noise"], f"{ratio:g}", str(n), _percent(row, "apart")
        rows.append([*start, promised[0], *words, promised[1]])
    head = ["noise", "true ratio", "launches", "difference found", "promised"]
    return [
        "## Power (% of comparisons)",
        "",
        "Difference found: p after Holm below 5 %, and the interval leaves out 1. The word *same"
        f" within {100 * MARGIN:g} %* goes first: where the whole interval lies inside the margin"
        " a difference, though found, is one that was declared not to matter. Promised: what"
        " `kvroad.analysis.stats.power` says before the run; for a difference that is the least,"
        " since"
        " Holm's correction is taken at its worst.",
        "",
        *_table([*head, "*faster* or *slower*", "*same*", "promised"], rows),
    ]


def _flag_lines(two: pd.DataFrame, equal: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    slow = two[(two["noise"] == "slow launches") & (two["ratio"] == 1.0)]
    of_slow = _by_launches(slow, "flag_if_slow", ["noise"])[0]
    flagged = _by_launches(equal, "outlier_flag", ["noise"])
    return [
        "## Flags (% of comparisons)",
        "",
        "Launches that stand apart are named and kept. Without any the flag is raised in at most"
        " 5 % of studies; with slow launches it rises:",
        "",
        *_table(
            ["noise", *numbers],
            [*flagged, ["slow launches, where there is one", *of_slow[1:]]],
        ),
        "Drift is flagged where it is found and is as large as the difference of the arms. With a"
        f" drift of {100 * DRIFT:g} %:",
        "",
        *_table(
            ["noise", "true ratio", *numbers],
            _by_launches(
                two[two["noise"].isin(("normal", "drift"))], "drift_flag", ["noise", "ratio"]
            ),
        ),
    ]


def _limits_lines(two: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    hard = two[two["noise"].isin(("slow launches", "uneven spread"))]
    uneven = hard[(hard["noise"] == "uneven spread") & (hard["ratio"] == 1.0)]
    return [
        "## What it cannot do",
        "",
        "Slow launches in one arm shift its mean: the interval is that of the mean with them in"
        " it, and it widens because the spreads become uneven. Coverage of the ratio without them,"
        " and with spreads that differ four-fold between prompt lengths (%):",
        "",
        *_table(
            ["noise", "true ratio", *numbers], _by_launches(hard, "coverage", ["noise", "ratio"])
        ),
        "With uneven spreads that is the mean over prompt lengths, and the targets do not hold"
        " for few launches. With "
        + "; with ".join(
            f"{row['launches']} launches the intervals cover {100 * row['worst_coverage']:.1f} % at"
            f" the noisiest prompt length, {_percent(row, 'false_rate')} % of A/A studies have a"
            f" false difference, and the unevenness is found in {_percent(row, 'uneven_flag')} %"
            for row in uneven.to_dict("records")
        )
        + ". The verdict says where spreads are uneven.",
        "",
    ]


def _cost_lines(fits: pd.DataFrame, n_fits: int) -> list[str]:
    """Return how often the intervals of the cost model hold, with standard errors."""
    names = ("t0", "per_descriptor", "per_byte", "share", "held_out")
    rows = [
        [str(row["cost"]), f"{100 * row['misfit']:g} %"]
        + [f"{100 * row[k]:.1f} ± {_binomial_error(row[k], n_fits):.1f}" for k in names]
        + ["" if math.isnan(row["half_width"]) else f"{100 * row['half_width']:.1f} %"]
        for row in fits.to_dict("records")
    ]
    known = "; ".join(
        f"{c.name}: {c.t0_us:g} µs, {c.per_descriptor_us:g} µs, {c.gb_per_s:g} GB/s" for c in COSTS
    )
    head = ["cost", "misfit", "t0", "per descriptor", "per byte", "operations' share"]
    return [
        "## Cost model: intervals that hold the truth (%)",
        "",
        f"{n_fits:,} simulated studies each: pulls of {PULL_BYTES[0]:,} and {PULL_BYTES[1]:,} bytes"
        f" in {', '.join(f'{k:,}' for k in CUTS)} pieces, 4 launches that vary by 2 %. Start of a"
        f" pull, each descriptor, each byte: {known}. Misfit moves each point, with all of its"
        " launches, off the model by that much. Held out: the mean of one inner size lies within"
        " the error that a fit without it states. The last column is the median half width of the"
        " interval of a descriptor's cost.",
        "",
        *_table([*head, "held out", "half width"], rows),
        "Intervals leave out one point at a time (jackknife), not one launch: what the model misses"
        " at a point it misses in all of its launches. There is no bootstrap below 10 launches.",
        "",
    ]


def _binomial_error(share: float, n: int) -> float:
    return 100 * math.sqrt(share * (1 - share) / n)


def main() -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=20_000, help="of each truth")
    parser.add_argument("--fits", type=int, default=1000, help="per cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/statistics.md"))
    arguments = parser.parse_args()
    rows = simulate(truths(), arguments.studies, arguments.seed, ALPHA, MARGIN)
    fits = simulate_fits(arguments.fits, arguments.seed, MISFITS, ALPHA)
    text = page(rows, fits, arguments.studies, arguments.fits, arguments.seed)
    write_text(arguments.out, text)


if __name__ == "__main__":
    main()
