"""``kvroad doctor``: one small pull on a host, or the logs of engines, and the road they show."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvroad.cli.status import DONE, FAILED, NotUnderstood, study_of
from kvroad.errors import UserError
from kvroad.evidence.kv_transfer import TransferSum
from kvroad.evidence.redact import redact_text
from kvroad.proof.deductions import (
    AS_CLAIMED,
    NO_ROAD,
    NOT_AS_MEANT,
    SHOWN,
    LogFinding,
    examine_log,
)
from kvroad.proof.diagnose import Diagnosis
from kvroad.proof.engine_logs import log_files, read_log

if TYPE_CHECKING:
    from kvroad.measure.trial_pull import ArmFinding, HostTable
    from kvroad.study.fields import Study

__all__ = ["LOGS_SCHEMA", "PULL_SCHEMA", "run"]

LOGS_SCHEMA, PULL_SCHEMA = "kvroad.doctor.logs/1", "kvroad.doctor.pull/1"
_LOGS = "logs="
_QUOTE_CHARACTERS = 300
_WORDS = {
    AS_CLAIMED: "AS CLAIMED",
    NOT_AS_MEANT: "NOT AS MEANT",
    SHOWN: "SEEN",
    NO_ROAD: "NO ROAD SHOWN",
}


def run(arguments: argparse.Namespace) -> int:
    """Examine logs where ``logs=`` is given, else the host."""
    logs = [word for word in arguments.overrides if word.startswith(_LOGS)]
    others = [word for word in arguments.overrides if not word.startswith(_LOGS)]
    if logs:
        return _run_logs(logs, others, arguments)
    return _run_pull(others, arguments)


def _run_logs(logs: Sequence[str], others: Sequence[str], arguments: argparse.Namespace) -> int:
    roads = _claimed_roads(others)
    try:
        files = log_files(_paths(logs[-1].removeprefix(_LOGS)))
    except UserError as error:
        raise NotUnderstood(str(error)) from error
    findings = []
    for path in files:
        findings.append(examine_log(read_log(path), roads))
        if not arguments.json:
            _print(_log_lines(findings[-1]))
    status = _log_status(findings)
    if arguments.json:
        plain = [_plain_log(finding) for finding in findings]
        data = {"schema": LOGS_SCHEMA, "claimed": list(roads), "logs": plain}
        print(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        print(_log_conclusion(findings, roads))
    return status


def _claimed_roads(words: Sequence[str]) -> list[str]:
    """Return the roads of the transports that the words name; none where they name none."""
    wrong = [word for word in words if not word.startswith("transport=")]
    if wrong:
        raise NotUnderstood(f"{wrong[0]}: beside logs= only transport= is taken, the claimed one")
    if not words:
        return []
    study = study_of(["study=smoke", *words])
    return list(dict.fromkeys(r for each in study.transports.values() for r in each.roads))


def _paths(text: str) -> list[str]:
    """Split at commas; a path with a comma goes in double quotes."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    paths = [path for path in next(csv.reader([inner], skipinitialspace=True), []) if path]
    if not paths:
        raise UserError("logs= names no file: write logs=decode.log,prefill.log or a folder")
    return paths


def _log_status(findings: Sequence[LogFinding]) -> int:
    """Return 0 where a road is shown and none is another one than meant."""
    states = {finding.status for finding in findings}
    is_good = NOT_AS_MEANT not in states and bool(states & {AS_CLAIMED, SHOWN})
    return DONE if is_good else FAILED


def _log_lines(finding: LogFinding) -> Iterator[str]:
    reading = finding.reading
    yield f"{reading.file}: {_WORDS[finding.status]}: {finding.sentence}"
    if finding.row is not None:
        yield f"  by {finding.row.where}: {_quoted(finding.row.text)}"
    if reading.versions:
        yield f"  UCX {', '.join(reading.versions)}"
    for line in reading.environments[-1:]:
        shown = " ".join(f"{k}={v}" for k, v in line.variables.items())
        yield f"  environment by {line.where}: {redact_text(shown)}"
    sums = reading.transfers
    if sums.transfers:
        yield _transfers_line(sums)
    yield from _cause_lines(finding.causes)


def _transfers_line(sums: TransferSum) -> str:
    """Say what vLLM's metrics lines add up to; times and bytes are of one rank's transfer."""
    n = sums.transfers
    issuing = 100 * sums.post_ms / sums.xfer_ms if sums.xfer_ms else 0.0
    return (
        f"  {n} transfers in {sums.lines} lines of metrics: {sums.xfer_ms / n:,.1f} ms each, "
        f"{issuing:.0f} % of it issuing; {sums.n_bytes / n / 1e6:,.1f} MB in "
        f"{sums.descriptors / n:,.0f} descriptors, {sums.gb_per_s or 0:.3g} GB/s within a transfer"
    )


def _log_conclusion(findings: Sequence[LogFinding], roads: Sequence[str]) -> str:
    posting = [f for f in findings if f.status != NO_ROAD]
    if not posting:
        return "no log shows the road of the cache"
    seen = " and ".join(dict.fromkeys(finding.road for finding in posting))
    claimed = f", claimed {' or '.join(roads)}" if roads else ""
    return f"road of the cache: {seen}{claimed}"


def _plain_log(finding: LogFinding) -> dict[str, Any]:
    reading, sums, row = finding.reading, finding.reading.transfers, finding.row
    return {
        "file": reading.file,
        "lines": reading.n_lines,
        "status": finding.status,
        "road": finding.road,
        "sentence": finding.sentence,
        "where": row and row.where,
        "quote": row and redact_text(row.text.strip()),
        "ucx_tls_asks_for": list(finding.entries),
        "ucx_versions": reading.versions,
        "transfers": {
            "count": sums.transfers,
            "xfer_ms_mean": sums.xfer_ms / sums.transfers if sums.transfers else None,
            "post_ms_mean": sums.post_ms / sums.transfers if sums.transfers else None,
            "descriptor_bytes_mean": sums.descriptor_bytes,
            "gb_per_s": sums.gb_per_s,
            "failed": sums.failed,
            "expired": sums.expired,
        },
        "causes": [asdict(cause) for cause in finding.causes],
    }


def _cause_lines(causes: Sequence[Diagnosis]) -> Iterator[str]:
    for cause in causes:
        report = f" ({cause.report})" if cause.report and cause.is_possible else ""
        yield f"  {'possible cause' if cause.is_possible else 'cause'}: {cause.cause}{report}"
        yield f"    fix: {cause.fix}"
        yield f"    by {cause.where}: {_quoted(cause.quote)}"


def _quoted(text: str) -> str:
    line = redact_text(" ".join(text.split()))
    return line if len(line) <= _QUOTE_CHARACTERS else f"{line[:_QUOTE_CHARACTERS]}…"


def _print(lines: Iterable[str]) -> None:
    # Each at once: a pull of the next arm may take a minute.
    for line in lines:
        print(line, flush=True)


def _run_pull(words: Sequence[str], arguments: argparse.Namespace) -> int:
    from kvroad.hosts import open_host
    from kvroad.measure.trial_pull import examine_arms, examine_hosts, is_fit
    from kvroad.study.design import make_design

    study = _study(words)
    if study.hosts:
        names = ", ".join(host.name for host in study.hosts)
        raise NotUnderstood(f"doctor examines one host at a time; these are several: {names}")
    design = make_design(study)
    say = (lambda lines: None) if arguments.json else _print
    with closing(open_host(study.host)) as host, _folder(arguments.keep) as folder:
        tables = examine_hosts(study, design, host)
        say(_table_lines(study, tables))
        arms: list[ArmFinding] = []
        if is_fit(tables):
            arms = examine_arms(study, host, tables, folder, lambda arm: say(_arm_lines(arm)))
        else:
            say(["no pull was tried: see what is refused above"])
    is_good = bool(arms) and all(arm.is_proven for arm in arms)
    if arguments.json:
        print(json.dumps(_plain_pull(study, tables, arms), indent=1, ensure_ascii=False))
    elif arms:
        proven = [arm.arm for arm in arms if arm.is_proven]
        lost = [arm.arm for arm in arms if not arm.is_proven]
        print(f"proven: {', '.join(proven) or 'none'}; not proven: {', '.join(lost) or 'none'}")
    return DONE if is_good else FAILED


def _study(words: Sequence[str]) -> Study:
    """Compose the doctor's study; on a host with two GPUs its pulls are between them."""
    from kvroad.measure.trial_pull import DEFAULTS

    study = study_of([*DEFAULTS, *words])
    keys = {word.lstrip("+").partition("=")[0] for word in words}
    if len(study.host.gpus) < 2 or "engine.memory" in keys:
        return study
    chosen = [] if "transport" in keys else ["transport=[nvlink,tcp]"]
    return study_of([*DEFAULTS, "engine.memory=VRAM", *chosen, *words])


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="kvroad-doctor-") as name:
            yield Path(name)
        return
    if keep.exists() and any(keep.iterdir()):
        raise NotUnderstood(f"--keep {keep}: the folder is not empty")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _table_lines(study: Study, tables: Sequence[HostTable]) -> Iterator[str]:
    from kvroad.measure.preflight import table_lines

    for table in tables:
        yield from table_lines(table.findings, table.label)
    memory = "between two GPUs" if study.engine.memory == "VRAM" else "in host memory"
    yield f"small pulls over each transport, {memory}:"


def _arm_lines(arm: ArmFinding) -> Iterator[str]:
    outcome = arm.outcome
    claimed = " or ".join(arm.claimed)
    yield (
        f"{arm.arm}: {outcome.outcome.upper()}: claimed {claimed}, seen {outcome.seen}: "
        f"{outcome.reason}"
    )
    for witness in outcome.witnesses:
        where = f" ({witness.where})" if witness.where else ""
        yield f"  {witness.name}: {witness.status}: {witness.seen}{where}"
    if arm.is_proven:
        return
    if outcome.quote:
        yield f"  by {outcome.where}: {_quoted(outcome.quote)}"
    if arm.host_says:
        yield f"  cause, by the host's own facts: {arm.host_says}"
    yield from _cause_lines(arm.causes)


def _plain_pull(
    study: Study, tables: Sequence[HostTable], arms: Sequence[ArmFinding]
) -> dict[str, Any]:
    return {
        "schema": PULL_SCHEMA,
        "host": study.host.name,
        "memory": study.engine.memory,
        "preflight": [asdict(table) for table in tables],
        "arms": [
            {
                "arm": arm.arm,
                "claimed": arm.claimed,
                "outcome": arm.outcome.outcome,
                "seen": arm.outcome.seen,
                "reason": arm.outcome.reason,
                "where": arm.outcome.where,
                "quote": arm.outcome.quote,
                "witnesses": [asdict(witness) for witness in arm.outcome.witnesses],
                "host_says": arm.host_says,
                "causes": [asdict(cause) for cause in arm.causes],
            }
            for arm in arms
        ],
    }
