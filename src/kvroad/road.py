"""The road proof: from the records of a raw folder to proven, refused or failed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvroad.byte_witnesses import byte_counter
from kvroad.diagnose import diagnose_complaints, diagnose_pulls, diagnose_row
from kvroad.errors import UserError
from kvroad.evidence.counters import KINDS, Tolerances
from kvroad.evidence.nixl import parse_pulls
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx import parse_lines
from kvroad.evidence.ucx_records import Complaint
from kvroad.plan import Claim
from kvroad.witnesses import (
    Evidence,
    FarEnd,
    Witness,
    environment,
    is_on_road,
    protocol_table,
    road_tables,
    seen_road,
    telemetry,
    use_counts,
)

__all__ = ["Outcome", "judge", "judge_raw", "read_raw", "witnesses_of"]

PROVEN, REFUSED, FAILED = "proven", "refused", "failed"
# What a launch of the same arm would meet again; counts, counters and crashes may differ.
_REPEATING = ("environment", "protocol_table")
_MANDATORY = ("environment", "protocol_table", "telemetry")
_ORDER = (
    "environment",
    "protocol_table",
    "telemetry",
    "use_counts",
    "nic_bytes",
    "nvlink_bytes",
    "interface_bytes",
)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: proven, or refused or failed with one line of reason.

    ``seen`` is the road that the tables show, ``none`` where nothing started and
    ``unknown`` where there is no table; ``repeats`` says that every launch of the arm
    would only end the same way. Attempt, run and time are known to who measures.
    """

    outcome: str
    reason: str
    expected: list[str]
    seen: str
    where: str
    quote: str
    repeats: bool
    witnesses: tuple[Witness, ...]
    attempt: int = 1
    run_id: str = ""
    measured_at: str = ""


def judge_raw(
    raw_dir: Path, tolerances: Tolerances | None = None, cell: str | None = None
) -> Outcome:
    """Judge a raw folder; ``tolerances`` replace those of its plan, ``cell`` picks one cell.

    Raises
    ------
    UserError
        When the folder holds no plan.
    """
    return judge(read_raw(raw_dir, cell), tolerances)


def read_raw(raw_dir: Path, cell: str | None = None) -> Evidence:
    """Read the evidence of a raw folder.

    Raises
    ------
    UserError
        When the folder holds no readable plan.
    """
    path = raw_dir / "plan.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        claim = _claim(plan["claim"])
        planned = {
            (c["cell"], phase["name"]): int(phase.get("pulls", 0))
            for c in plan["cells"]
            for phase in c["phases"]
            if cell in (None, c["cell"])
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not the plan of a raw folder: {error}") from error
    logs, pulls = {}, []
    for log in sorted(raw_dir.glob("*.log")):
        with log.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            logs[log.name] = parse_lines(lines, log.name)
    for rows in sorted(raw_dir.glob("pulls-*.jsonl")):
        with rows.open(encoding="utf-8", errors="replace") as lines:
            pulls.append(parse_pulls(lines, rows.name))
    return Evidence(
        claim,
        logs,
        tuple(pulls),
        _json_rows(raw_dir / "counters.jsonl"),
        _json_rows(raw_dir / "events.jsonl"),
        planned,
        cell,
        len(plan["cells"]),
        _far_end(raw_dir, claim),
    )


def _far_end(raw_dir: Path, claim: Claim) -> FarEnd | None:
    """Read what the passive half's host counted, where it is another one."""
    if claim.side is None:
        return None
    side = "prefill" if claim.side == "decode" else "decode"
    plan = json.loads((raw_dir / f"{side}.plan.json").read_text(encoding="utf-8"))
    file = f"{side}.counters.jsonl"
    return FarEnd(_claim(plan["claim"]), _json_rows(raw_dir / file), file)


def _claim(data: Mapping[str, Any]) -> Claim:
    """Take what is known of a claim, so that a newer plan's folder can be judged too."""
    known = {field.name for field in dataclasses.fields(Claim)}
    return Claim(**{name: value for name, value in data.items() if name in known})


def _json_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """Read a file of JSON lines; a last line that a crash cut off is passed over."""
    if not path.exists():
        return ()
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return tuple(rows)


def judge(evidence: Evidence, tolerances: Tolerances | None = None) -> Outcome:
    """Weigh all witnesses.

    Proven needs environment line, protocol table and telemetry, at least one count or
    byte witness that agrees, and none that contradicts. Bytes that arrived wrong and
    launches that broke off have failed; all else is refused.
    """
    if tolerances is not None:
        claim = dataclasses.replace(
            evidence.claim,
            carried_at_least=tolerances.carried_at_least,
            not_carried_at_most=tolerances.not_carried_at_most,
            idle_bytes_per_s=tolerances.idle_bytes_per_s,
        )
        evidence = dataclasses.replace(evidence, claim=claim)
    witnesses = witnesses_of(evidence)
    return (
        _data_error(evidence, witnesses)
        or _nothing_started(evidence, witnesses)
        or _broken_off(evidence, witnesses)
        or _refusal(evidence, witnesses)
        or _stopped(evidence, witnesses)
        or _proof(evidence, witnesses)
    )


def witnesses_of(evidence: Evidence) -> tuple[Witness, ...]:
    """Hear every witness, in the order in which the outcome lists them."""
    return (
        environment(evidence),
        protocol_table(evidence),
        use_counts(evidence),
        *(byte_counter(kind, evidence) for kind in KINDS),
        telemetry(evidence),
    )


def _outcome(
    evidence: Evidence,
    witnesses: tuple[Witness, ...],
    outcome: str,
    reason: str,
    where: str,
    quote: str,
    seen: str | None = None,
    repeats: bool = False,
) -> Outcome:
    line = " ".join(redact_text(reason).split())
    road = seen or seen_road(evidence)
    roads = list(evidence.claim.roads)
    return Outcome(outcome, line, roads, road, where, redact_text(quote), repeats, witnesses)


def _claimed(claim: Claim) -> str:
    return f"claimed {claim.transport} ({' or '.join(claim.roads)}) but"


def _advice(evidence: Evidence) -> str:
    """Return what is known of the cause, as the rest of a sentence."""
    found = diagnose_complaints(evidence.logs.values())
    return f": {found[0]}" if found else ""


def _data_error(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome | None:
    pulls = list(evidence.cell_pulls())
    wrong = [p for p in pulls if p.is_done and p.verified is False]
    if not wrong:
        return None
    reason = (
        f"data error: {len(wrong)} of {len(pulls)} pulls brought other bytes than prefill wrote, "
        f"first pull {wrong[0].pull} of rank {wrong[0].rank} in phase {wrong[0].phase} "
        f"({wrong[0].where})"
    )
    return _outcome(evidence, witnesses, FAILED, reason, wrong[0].where, "")


def _nothing_started(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome | None:
    """Refuse a road that cannot start: NIXL made no backend and no pull was done."""
    if any(p.is_done for p in evidence.cell_pulls()):
        return None
    complaints = [c for log in evidence.logs.values() for c in log.complaints]
    if not any("NIXL_ERR_BACKEND" in c.message for c in complaints):
        return None
    known = diagnose_complaints(evidence.logs.values())
    if known:
        where, quote, why = known[0].where, known[0].quote, str(known[0])
    else:
        worst = min(complaints, key=_gravity)
        where, quote, why = worst.where, worst.text.strip(), f"{worst.message} ({worst.where})"
    reason = f"{_claimed(evidence.claim)} nothing started: {why}"
    return _outcome(evidence, witnesses, REFUSED, reason, where, quote, "none", repeats=True)


def _gravity(complaint: Complaint) -> tuple[bool, bool]:
    """Sort UCX before NIXL, which only passes on what UCX said, and errors before warnings."""
    return complaint.speaker != "UCX", complaint.level == "WARN"


def _broken_off(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome | None:
    """Fail a launch that did not reach its end, unless the road is known to be wrong."""
    ended = evidence.ended()
    if ended.get("status") in ("complete", "stopped"):
        return None
    table = next(w for w in witnesses if w.name == "protocol_table")
    if table.status == "contradicts" or _has_lost_transfer(evidence):
        return None
    step = ended.get("step") or "the launch"
    said = ended.get("reason") or "the agent left no end event"
    culprit = _culprit(evidence)
    log = evidence.logs.get(culprit)
    last = [r for r in log.last_lines if r.text.strip()] if log else []
    quote = " | ".join(r.text.strip() for r in last)
    where = last[-1].where if last else "events.jsonl"
    reason = f"{step} failed: {said}{_advice(evidence)}"
    return _outcome(evidence, witnesses, FAILED, reason, where, quote)


def _culprit(evidence: Evidence) -> str:
    """Return the log of the first process that exited with an error, else the posting one's."""
    for event in evidence.events:
        if event.get("event") == "exit" and event.get("returncode"):
            return f"{event.get('process')}.log"
    return evidence.initiators[0]


def _refusal(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome | None:
    by_name = {w.name: w for w in witnesses}
    faults = [by_name[n] for n in _ORDER if by_name[n].status == "contradicts"]
    faults += [by_name[n] for n in _MANDATORY if by_name[n].status == "unavailable"]
    is_stopped = evidence.ended().get("status") == "stopped"
    if is_stopped:
        # The measured phases of a stopped cell are missing on purpose.
        faults = [w for w in faults if w.name != "telemetry" or _has_lost_transfer(evidence)]
    if not faults:
        return None
    worst = faults[0]
    repeats = worst.name in _REPEATING and worst.status == "contradicts"
    reason = f"{_claimed(evidence.claim)} {_sentence(worst)}{_cause(evidence, worst)}"
    return _outcome(evidence, witnesses, REFUSED, reason, worst.where, worst.quote, repeats=repeats)


def _has_lost_transfer(evidence: Evidence) -> bool:
    return any(not p.is_done for p in evidence.cell_pulls())


def _sentence(witness: Witness) -> str:
    if witness.name.endswith("_bytes"):
        kind = witness.name.removesuffix("_bytes")
        return f"{kind} counters saw {witness.seen}, expected {witness.expected} ({witness.where})"
    return f"{witness.seen} ({witness.where})"


def _cause(evidence: Evidence, witness: Witness) -> str:
    """Return what is known of the cause of a fault, as the rest of its sentence."""
    if witness.name == "telemetry":
        found = diagnose_pulls(evidence.pulls)
        return f": {found}" if found else _advice(evidence)
    if witness.name == "environment":
        return _advice(evidence)
    if witness.name != "protocol_table":
        return ""
    if witness.status == "unavailable":
        return _early_death(evidence)
    claim = evidence.claim
    for file in evidence.initiators:
        log = evidence.logs.get(file)
        for table in road_tables(log, claim):
            row = table.row_for(claim.descriptor_bytes)
            if log is not None and row is not None and not is_on_road(row, claim):
                hint = diagnose_row(log, row, claim.memory)
                if hint:
                    return f": {hint}"
    return _advice(evidence)


def _early_death(evidence: Evidence) -> str:
    names = [file.removesuffix(".log") for file in evidence.initiators]
    for event in evidence.events:
        if event.get("event") == "exit" and event.get("process") in names and event["returncode"]:
            status = f"{event['process']} ended with status {event['returncode']}"
            return f": {status}, and tables in use are printed at a clean end only"
    return _advice(evidence)


def _stopped(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome | None:
    """Refuse what the agent stopped after warm-up, by the check that stopped it."""
    ended = evidence.ended()
    if ended.get("status") != "stopped":
        return None
    checks = [e for e in evidence.events if e.get("event") == "check" and e.get("ok") is False]
    first = checks[0] if checks else {}
    kind = str(first.get("kind", "the agent")).removesuffix("_bytes")
    what = f"{kind} counters saw {first.get('seen')}, expected {first.get('expected')}"
    reason = f"{_claimed(evidence.claim)} after warm-up {what if first else ended.get('reason')}"
    where = str(first.get("where", "events.jsonl"))
    return _outcome(evidence, witnesses, REFUSED, reason, where, "")


def _proof(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome:
    claim = evidence.claim
    table = next(w for w in witnesses if w.name == "protocol_table")
    agreeing = [w for w in witnesses if w.status == "agrees" and w.name not in _MANDATORY]
    if not agreeing:
        reason = f"{_claimed(claim)} no use count and no byte counter is there to confirm it"
        return _outcome(evidence, witnesses, REFUSED, reason, table.where, table.quote)
    names = ", ".join(w.name for w in witnesses if w.status == "agrees")
    deed = "reads" if claim.operation == "read" else "writes"
    reason = f"{deed} went by {table.seen}; {names} agree"
    return _outcome(evidence, witnesses, PROVEN, reason, table.where, table.quote)
