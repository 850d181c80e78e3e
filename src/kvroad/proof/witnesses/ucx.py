"""Witnesses from UCX's own output, of claims whose backend it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import EnvironmentLine, ProtocolRow, ProtocolTable, UcxLog
from kvroad.plan import Claim
from kvroad.proof.backends.ucx import (
    is_claimed,
    is_on_road,
    memory_type,
    road_tables,
)
from kvroad.proof.diagnose import advice, diagnose_row
from kvroad.proof.raw import Evidence
from kvroad.proof.witness import (
    AGREES,
    CONTRADICTS,
    UNAVAILABLE,
    Finding,
    Witness,
    WitnessKind,
    conclude,
    plain_reason,
)

__all__ = ["ENVIRONMENT", "PROTOCOL_TABLE", "USE_COUNTS", "protocol_table", "use_counts"]


def environment(evidence: Evidence) -> Witness:
    """Hold UCX's own environment line against the asked variables.

    Every posting process whose tables are used must have printed one; what the peers
    printed must not differ.
    """
    claim = evidence.claim
    wanted = {k: v for k, v in claim.environment.items() if k.startswith("UCX_")}
    faults: list[Finding] = []
    good = Finding(AGREES, "as asked", "")
    for file in evidence.initiators:
        log = _log(evidence, file)
        lines = log.environments
        used = {t.pid for t in road_tables(log, claim)} or {line.pid for line in lines}
        silent = used - {line.pid for line in lines}
        if not used or silent:
            who = f"process {min(silent)}" if silent else "any process"
            seen = f"UCX printed no `UCX_* env variables` line of {who}"
            faults.append(Finding(UNAVAILABLE, seen, file))
        for line in lines:
            if line.pid in used:
                faults += _differences(line, wanted)
                good = good if good.where else Finding(AGREES, "as asked", line.where, line.text)
    for file in evidence.logs:
        if file not in evidence.initiators:
            lines = _log(evidence, file).environments
            faults += [fault for line in lines for fault in _differences(line, wanted)]
    expected = " ".join(f"{k}={v}" for k, v in sorted(wanted.items()))
    return conclude("environment", redact_text(expected), faults, good)


def _log(evidence: Evidence, file: str) -> UcxLog:
    """Return a log by its name, an empty one where there is none."""
    log = evidence.logs.get(file)
    return log if isinstance(log, UcxLog) else UcxLog(file)


def _differences(line: EnvironmentLine, wanted: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in sorted(wanted.items()):
        got = line.variables.get(name)
        if got is None and line.is_cut:
            seen = f"UCX cut its environment line before {name}; a larger UCX_LOG_BUFFER shows it"
            yield Finding(UNAVAILABLE, seen, line.where, line.text)
        elif got is None:
            yield Finding(CONTRADICTS, f"{name} did not arrive", line.where, line.text)
        elif got != value.rstrip():
            seen = f"{name} arrived as {got!r}, asked was {value!r}"
            yield Finding(CONTRADICTS, seen, line.where, line.text)


def protocol_table(evidence: Evidence) -> Witness:
    """Hold the row that holds the descriptor size, of every worker, against the roads."""
    claim = evidence.claim
    size = claim.descriptor_bytes
    faults: list[Finding] = []
    good = Finding(AGREES, "", "")
    n_tables = 0
    for file in evidence.initiators:
        tables = road_tables(evidence.logs.get(file), claim)
        n_tables += len(tables)
        if not tables:
            what = f"`remote memory {claim.operation}` table of {memory_type(claim)} memory"
            faults.append(Finding(UNAVAILABLE, f"UCX printed no {what}", file))
        missing = _ranks_without(tables, claim)
        if tables and missing:
            seen = f"{missing} of {_engine_ranks(claim)} ranks printed no table"
            faults.append(Finding(UNAVAILABLE, seen, file))
        for table in sorted(tables, key=_uses, reverse=True):
            row = _worst_row(table, claim)
            if row is not None and not is_on_road(row, claim):
                faults.append(
                    Finding(
                        CONTRADICTS,
                        f"the {claim.transfers} went by {row}",
                        row.where,
                        row.text,
                    )
                )
            elif not table.is_complete:
                faults.append(Finding(UNAVAILABLE, "a table is cut", table.where, table.text))
            elif row is None:
                seen = f"worker {table.pid}:{table.tid} {table.context} has no row for {size} bytes"
                faults.append(Finding(CONTRADICTS, seen, table.where, table.text))
            elif not good.where:
                good = Finding(AGREES, str(row), row.where, row.text)
    expected = f"{' or '.join(claim.roads)} for {size} bytes in every worker"
    workers = "one worker" if n_tables == 1 else f"{n_tables} workers"
    good = Finding(AGREES, f"{good.seen} in {workers}", good.where, good.quote)
    return conclude("protocol_table", expected, faults, good)


def _worst_row(table: ProtocolTable, claim: Claim) -> ProtocolRow | None:
    """Return the row of the descriptor size, or one off the road that a merged one would take."""
    row = table.row_for(claim.descriptor_bytes)
    if row is None or claim.serving is None or not is_on_road(row, claim):
        return row
    largest = claim.serving.largest_descriptor_bytes
    higher = [r for r in table.rows if row.min_bytes < r.min_bytes <= largest]
    return next((r for r in higher if not is_on_road(r, claim)), row)


def _engine_ranks(claim: Claim) -> int:
    return claim.serving.engine_ranks if claim.serving is not None else 1


def _ranks_without(tables: list[ProtocolTable], claim: Claim) -> int:
    """Return how many ranks of a serving engine, each a process, are without a table."""
    return max(0, _engine_ranks(claim) - len({table.pid for table in tables}))


def _uses(table: ProtocolTable) -> int:
    return sum(row.count or 0 for row in table.rows)


def use_counts(evidence: Evidence) -> Witness:
    """Hold UCX's use counts against the descriptors moved since the start, warm-up included.

    Zero-copy and emulating rows count descriptors, copy-out rows pieces, ``sgl`` rows
    transfers: so the claimed road must count no less, and no other row anything.
    """
    name, expected = "use_counts", "no less than the descriptors moved, none on another road"
    if not evidence.claim.use_counts:
        return Witness(name, UNAVAILABLE, expected, "use counts were not asked for", "")
    findings = [
        finding
        for rank, file in enumerate(evidence.initiators)
        for finding in _rank_counts(evidence, rank, file)
    ]
    good = next((f for f in findings if f.status == AGREES), Finding(AGREES, "", ""))
    return conclude(name, expected, findings, good)


def _rank_counts(evidence: Evidence, rank: int, file: str) -> Iterator[Finding]:
    """Compare the counts of one posting process with what its rank moved."""
    claim, log = evidence.claim, _log(evidence, file)
    tables = [t for t in log.tables if t.operation == claim.operation]
    if not any(table.has_counts for table in tables):
        yield Finding(UNAVAILABLE, "UCX printed no use counts", file)
        return
    right = road_tables(log, claim)
    rows = [(table, row) for table in tables for row in table.rows if row.count]
    on_road = [row for table, row in rows if table in right and is_claimed(row, claim)]
    lost = [(table, row) for table, row in rows if row not in on_road]
    yield from _astray(lost, right, sum(row.count or 0 for _, row in rows), claim)
    done = [p for pulls in evidence.pulls for p in pulls.pulls if p.rank == rank and p.is_done]
    # An emulated list is written piece by piece, and counted so.
    is_sgl = any(row.description == "sgl" for row in on_road)
    needed = len(done) if is_sgl else sum(p.descriptors_moved or 0 for p in done)
    what = f"{needed} {'transfers' if is_sgl else 'descriptors'} moved"
    counted = sum(row.count or 0 for row in on_road)
    where, quote = next(((row.where, row.text) for row in on_road), (file, ""))
    if counted < needed or not done:
        seen = f"UCX counted {counted} {claim.transfers} on the claimed road for {what}"
        yield Finding(CONTRADICTS, seen, where, quote)
    else:
        yield Finding(AGREES, f"{counted} counted for {what}", where, quote)


def _astray(
    lost: list[tuple[ProtocolTable, ProtocolRow]],
    right: list[ProtocolTable],
    n_counted: int,
    claim: Claim,
) -> Iterator[Finding]:
    """Sum the counts on other roads by what their rows say."""
    by_text: dict[str, list[ProtocolRow]] = {}
    for table, row in lost:
        place = "" if table in right else f" ({table.scope}: {table.title})"
        by_text.setdefault(f"{row}{place}", []).append(row)
    for text, rows in by_text.items():
        n_lost = sum(row.count or 0 for row in rows)
        seen = f"{n_lost} of {n_counted} {claim.transfers} counted went by {text}"
        yield Finding(CONTRADICTS, seen, rows[0].where, rows[0].text)


def _is_ucx(claim: Claim) -> bool:
    return claim.backend == "ucx" and not claim.is_alone


def _environment_reason(evidence: Evidence, witness: Witness) -> str:
    return plain_reason(evidence, witness) + advice(evidence.logs.values())


def _table_reason(evidence: Evidence, witness: Witness) -> str:
    """Say why a table is missing, or what is known of the road that it shows."""
    reason, claim = plain_reason(evidence, witness), evidence.claim
    if witness.status == UNAVAILABLE:
        return reason + _early_death(evidence)
    for file in evidence.initiators:
        log = _log(evidence, file)
        for table in road_tables(log, claim):
            row = table.row_for(claim.descriptor_bytes)
            if row is not None and not is_on_road(row, claim):
                hint = diagnose_row(log, row, claim.memory)
                if hint:
                    return f"{reason}: {hint}"
    return reason + advice(evidence.logs.values())


def _early_death(evidence: Evidence) -> str:
    names = [file.removesuffix(".log") for file in evidence.initiators]
    for event in evidence.events:
        if event.get("event") == "exit" and event.get("process") in names and event["returncode"]:
            status = f"{event['process']} ended with status {event['returncode']}"
            return f": {status}, and tables in use are printed at a clean end only"
    return advice(evidence.logs.values())


def _roads(claim: Claim) -> str:
    return " or ".join(claim.roads)


def _expected_table(claim: Claim) -> str:
    return f"`remote memory {claim.operation}` over {_roads(claim)} in every worker"


def _expected_counts(claim: Claim) -> str:
    return f"every descriptor over {_roads(claim)}, none elsewhere" if claim.use_counts else ""


ENVIRONMENT = WitnessKind(
    name="environment",
    hear=environment,
    expected=lambda claim: "UCX's own line says what was asked",
    place=10,
    applies=_is_ucx,
    is_mandatory=_is_ucx,
    repeats=True,
    reason=_environment_reason,
)
PROTOCOL_TABLE = WitnessKind(
    name="protocol_table",
    hear=protocol_table,
    expected=_expected_table,
    place=20,
    applies=_is_ucx,
    is_mandatory=_is_ucx,
    names_road=True,
    repeats=True,
    reason=_table_reason,
)
USE_COUNTS = WitnessKind(
    name="use_counts",
    hear=use_counts,
    expected=_expected_counts,
    place=30,
    # Serving engines may be killed at their end, which use counts do not survive.
    applies=lambda claim: _is_ucx(claim) and claim.serving is None,
    proves_road=True,
)
