"""docs/performance.md from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import t as student_t

__all__ = ["markdown_table", "performance_page"]

REST, SERVING_REST, NOTHING, CPU_S, RSS_MB = 0.10, 0.05, 2.0, 20.0, 600
FIRST_S, SECOND_S, PARSER_MB_S, RATE, POST = 60.0, 5.0, 100.0, 0.97, 0.03
MB = 1e6


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of Markdown, and an empty line, as lines."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _met(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def performance_page(data: dict[str, Any]) -> str:
    """Return the page of what kvroad costs; parts that were not measured are named as such."""
    parts = {
        "shares": lambda d: _shares(d, REST, "Where a study's time goes"),
        "serving_shares": lambda d: _shares(d, SERVING_REST, "Where a serving study's time goes"),
        "nothing_to_do": _nothing,
        "analysis": _analysis,
        "tracking": _tracking,
        "parsers": _parsers,
        "replay": _replay,
        "imports": _imports,
    }
    targets: list[list[str]] = []
    sections: list[str] = []
    for name, section in parts.items():
        if name not in data:
            targets.append([name.replace("_", " "), "", "", "not measured"])
            continue
        told, lines = section(data[name])
        targets += told
        when = data[name]["measured_at"]
        load = data[name].get("load")
        told_load = "" if load is None else f", load {load:.1f} before it"
        sections += [*lines, f"Measured {when} UTC{told_load}.", ""]
    machine = next(iter(data.values()))["machine"]
    lines = [
        "# What kvroad costs",
        "",
        "This page is written by a program; every number on it was measured by this command:",
        "",
        "```",
        "uv run python -m benchmarks.performance",
        "```",
        "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python"
        f" {machine['python']}. Costs are given as CPU seconds, or as ratios of what took turns in"
        " one run, wherever that is possible; each part tells the load before it. Wall times are"
        " upper bounds.",
        "",
        "## Targets",
        "",
        *markdown_table(["what", "target", "measured", ""], targets),
        *sections,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def _shares(d: dict[str, Any], limit: float, title: str) -> tuple[list[list[str]], list[str]]:
    total = d["total_s"]
    name = f"wall time of study {d['study']} that is neither measuring nor engines"
    share = d["rest_s"] / total
    target = [
        name,
        f"at most {100 * limit:.0f} %",
        _percent(d["rest_s"], total),
        _met(share <= limit),
    ]
    rows = [
        ["measuring windows", d["windows_s"]],
        ["start and stop of engines", d["engines_s"]],
        *([f"rest: {k}", v] for k, v in d["rest"].items()),
    ]
    steps = sorted(d["analysis_s"].items(), key=lambda item: -item[1])
    listed = ", ".join(f"{k} {v:.1f} s" for k, v in steps)
    n = d["launches"]
    lines = [
        f"## {title}",
        "",
        f"Study {d['study']}, {n} launches, from the first launch to the last job: {total:.0f} s.",
        "",
        *markdown_table(
            ["part", "seconds", "share", "per launch"],
            [[k, f"{v:.1f}", _percent(v, total), f"{v / n:.2f} s"] for k, v in rows],
        ),
        f"The analysis does not grow with the time of a launch: {listed}. It runs after the host"
        " has been let go of. Without it the rest is"
        f" {_percent(d['rest_s'] - d['rest']['analysis'], total - d['rest']['analysis'])}.",
        "",
        f"Before the first launch: {d['before_first_launch_s']:.1f} s (Snakemake, the"
        f" configuration, the check of the host); to the first pull: {d['first_pull_s']:.1f} s.",
        "",
    ]
    return [target], lines


def _nothing(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    ours, empty = median(d["cpu_s"]), median(d["empty_cpu_s"])
    ratio = ours / empty
    what = f"nothing to do with {d['cells']:,} measured cells, CPU against an empty workflow"
    target = [what, f"at most {NOTHING:g}x", f"{ratio:.2f}x", _met(ratio <= NOTHING)]
    lines = [
        "## Nothing to do",
        "",
        f"`snakemake all` with {d['cells']:,} measured (synthetic) cells takes {ours:.1f} s of CPU;"
        f" a Snakefile of as many jobs without any content, {empty:.1f} s. Medians of"
        f" {len(d['cpu_s'])} runs in turn.",
        "",
    ]
    return [target], lines


def _analysis(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    sizes = sorted({row["cells"] for row in d["rows"]})
    steps = list(dict.fromkeys(row["step"] for row in d["rows"]))
    of = {(row["cells"], row["step"]): row for row in d["rows"]}
    cpu = {n: sum(of[n, s]["cpu_s"] for s in steps) for n in sizes}
    rss = {n: max(of[n, s]["rss_bytes"] for s in steps) / MB for n in sizes}
    most = sizes[-1]
    growth = (cpu[most] - cpu[sizes[-2]]) / (most - sizes[-2])
    before = (cpu[sizes[-2]] - cpu[sizes[0]]) / (sizes[-2] - sizes[0])
    what = f"raw files of {most:,} cells of 100 pulls to verdict, figures and report"
    targets = [
        [f"{what}: CPU", f"at most {CPU_S:g} s", f"{cpu[most]:.1f} s", _met(cpu[most] <= CPU_S)],
        [
            f"{what}: memory",
            f"at most {RSS_MB} MB",
            f"{rss[most]:.0f} MB",
            _met(rss[most] <= RSS_MB),
        ],
    ]
    rows = [
        [s, *(f"{of[n, s]['cpu_s']:.1f} s, {of[n, s]['rss_bytes'] / MB:.0f} MB" for n in sizes)]
        for s in steps
    ]
    rows.append(["all", *(f"**{cpu[n]:.1f} s, {rss[n]:.0f} MB**" for n in sizes)])
    lines = [
        "## From raw files to the report",
        "",
        "CPU of each step in an interpreter of its own, as Snakemake starts it, and the most memory"
        " held. Cells are synthetic: copies of 20 measured ones with other names and times.",
        "",
        *markdown_table(["step", *(f"{n:,} cells" for n in sizes)], rows),
        f"A further cell costs {1000 * growth:.1f} ms of CPU from {sizes[-2]:,} cells on,"
        f" {1000 * before:.1f} ms before; what does not grow are {len(steps)} interpreters with"
        " pandas.",
        "",
    ]
    return targets, lines


def _tracking(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    first, second = d["passes"]
    what = f"MLflow, {d['cells']:,} cells"
    targets = [
        [
            f"{what}: first pass, CPU",
            f"at most {FIRST_S:g} s",
            f"{first['cpu_s']:.1f} s",
            _met(first["cpu_s"] <= FIRST_S),
        ],
        [
            f"{what}: second pass, CPU",
            f"at most {SECOND_S:g} s",
            f"{second['cpu_s']:.1f} s",
            _met(second["cpu_s"] <= SECOND_S),
        ],
    ]
    rows = ", ".join(f"{n:,} {name}" for name, n in first["rows"].items())
    lines = [
        "## MLflow",
        "",
        f"First pass: {first['cpu_s']:.1f} s of CPU ({first['wall_s']:.1f} s of wall time) for"
        f" {first['created']:,} runs, the start of the database and the import of MLflow included;"
        f" second: {second['cpu_s']:.1f} s of CPU ({second['wall_s']:.1f} s of wall time),"
        f" {second['unchanged']:,} unchanged, told from the database without MLflow. The database then has {rows} and"
        f" {first['database_bytes'] / MB:.1f} MB.",
        "",
    ]
    return targets, lines


def _parsers(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    engine = [r for r in d["rows"] if r["kind"] == "engine"]
    largest = max(r["mb"] for r in engine)
    last = [r for r in engine if r["mb"] == largest]
    slowest = min(r["mb_per_s"] for r in last if r["what"] != "doctor")
    of_doctor = min((r["mb_per_s"] for r in last if r["what"] == "doctor"), default=0.0)
    grown = max(r["rss_bytes"] - r["rss_before_bytes"] for r in engine if r["mb"] == largest) / MB
    targets = [
        [
            f"parsers of a study on an engine's log of {largest:,} MB",
            f"at least {PARSER_MB_S:g} MB/s per core",
            f"{slowest:.0f} MB/s",
            _met(slowest >= PARSER_MB_S),
        ],
        [
            f"`kvroad doctor` on an engine's log of {largest:,} MB",
            f"at least {PARSER_MB_S:g} MB/s per core",
            f"{of_doctor:.0f} MB/s",
            _met(of_doctor >= PARSER_MB_S),
        ],
        [
            "memory beside the interpreter's while doing so",
            "constant",
            f"{grown:.1f} MB",
            _met(grown < 10),
        ],
    ]
    names = {
        "records": "UCX and NIXL lines to records",
        "serving": "vLLM's transfers and options",
        "versions": "manifest and versions",
        "doctor": "`kvroad doctor logs=`: all of these and known causes",
    }
    rows = [
        [
            r["kind"],
            f"{r['mb']} MB",
            names[r["what"]],
            f"{r['mb_per_s']:.0f} MB/s",
            f"{(r['rss_bytes'] - r['rss_before_bytes']) / MB:.1f} MB",
        ]
        for r in d["rows"]
    ]
    lines = [
        "## Parsers",
        "",
        "Logs are synthetic: a real one, then what repeats in it while the program is at work. In an"
        " engine's log that is a line for each request and for the engine's figures, and in every MB"
        " a line of its transfers, of which one record each is kept; UCX speaks at the start alone. A log of nothing but UCX's tables"
        " is the worst there is: every line becomes a record and memory grows with them (not in"
        " `kvroad doctor`, which keeps what differs). Rates are per second of CPU.",
        "",
        *markdown_table(["log", "size", "what is read", "rate", "memory"], rows),
    ]
    return targets, lines


def _quartiles(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.3f} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})"


def _replay(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    rate, post = (_pooled(d["rows"], f"{name}_to_bare") for name in ("rate", "post"))
    n = len(d["rows"])
    targets = [
        [
            f"pulls of the replay, rate against a bare NIXL loop ({n} settings together)",
            f"at least {RATE:g}",
            f"{rate[0]:.3f} ({rate[1]:.3f} to {rate[2]:.3f})",
            _shown(rate[1] >= RATE, rate[2] < RATE),
        ],
        [
            f"post time against the bare loop ({n} settings together)",
            f"within {100 * POST:g} %",
            f"{post[0]:.3f} ({post[1]:.3f} to {post[2]:.3f})",
            _shown(
                post[1] >= 1 - POST and post[2] <= 1 + POST,
                post[2] < 1 - POST or post[1] > 1 + POST,
            ),
        ],
    ]
    rows = [
        [
            r["case"],
            r["transport"],
            str(r["in_flight"]),
            f"{r['replay_pulls_per_s']:.1f}/s",
            *(
                _quartiles(r, f"{name}_to_{kind}")
                for kind in ("bare", "hot")
                for name in ("rate", "post")
            ),
        ]
        for r in d["rows"]
    ]
    lines = [
        "## The replay's own cost",
        "",
        "In one launch under the agent, phases of the replay and phases of a bare loop (post, poll,"
        " telemetry, release) take turns in the same process: same agent, memory, lists, blocks,"
        f" notification, road. {d['turns']} turns of {d['pulls']} pulls of {d['length']:,} tokens;"
        " ratios turn by turn, median and quartiles. The replay spoils the memory before a pull and"
        " compares it afterwards, outside of the timed stretch; so does the bare loop, so that a pull"
        " finds caches and idle threads alike. The hot loop leaves the memory alone and posts again at"
        " once: what is between it and the others is the state in which a pull finds the machine, not"
        " code of the replay. The targets are judged by the geometric mean of the medians of all"
        f" settings with its 95 % t interval; single ones are too noisy here, the worst rate is"
        f" {min(r['rate_to_bare'] for r in d['rows']):.3f}.",
        "",
        *markdown_table(
            [
                *("engine", "road", "in flight", "pulls"),
                *("rate to bare", "post to bare", "rate to hot", "post to hot"),
            ],
            rows,
        ),
        *_spinning(d["rows"]),
    ]
    return targets, lines


def _pooled(rows: list[dict[str, Any]], name: str) -> tuple[float, float, float]:
    """Return the geometric mean of a ratio over rows, and its 95 % t interval."""
    logs = np.log([row[name] for row in rows])
    half = student_t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return float(mean), float(low), float(high)


def _shown(is_met: bool, is_missed: bool) -> str:
    if not is_met and not is_missed:
        return "**not shown**"
    return _met(is_met)


def _spinning(rows: list[dict[str, Any]]) -> list[str]:
    """Say what NIXL's threads do: the same pulls by engine settings."""
    cases = list(dict.fromkeys(r["case"] for r in rows))
    of = {(r["case"], r["transport"], r["in_flight"]): r for r in rows}
    lines = []
    for road, n in dict.fromkeys((r["transport"], r["in_flight"]) for r in rows):
        told = [
            f"{case}: {of[case, road, n]['replay_pulls_per_s']:.1f}/s, post"
            f" {of[case, road, n]['replay_post_us'] / 1000:.1f} ms"
            for case in cases
        ]
        lines.append(f"- {road}, {n} in flight: {'; '.join(told)}.")
    return ["What NIXL's threads do to the same pulls on these cores:", "", *lines, ""]


def _imports(d: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    heavy = d["parsing"]["heavy"]
    target = [
        "heavy modules that the Snakefile's own imports bring in",
        "none",
        ", ".join(heavy) or "none",
        _met(not heavy),
    ]
    largest = ", ".join(
        f"{row['package']} {row['seconds']:.2f} s" for row in d["measuring"]["largest"]
    )
    lines = [
        "## Start-up",
        "",
        f"A dry run of the smoke study takes {d['dry_run_cpu_s']:.1f} s of CPU, of which importing"
        f" Snakemake alone is {d['snakemake_alone_cpu_s']:.1f} s and what the Snakefile imports of"
        f" kvroad {d['parsing']['cpu_s']:.2f} s. A measuring job imports for"
        f" {d['measuring']['cpu_s']:.2f} s of CPU; the most of it: {largest}.",
        "",
    ]
    return [target], lines
