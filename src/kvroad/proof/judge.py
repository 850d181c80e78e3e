"""The road proof: from the records of a raw folder to proven, refused or failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kvroad.evidence.counters import KINDS, Tolerances
from kvroad.evidence.redact import redact_text
from kvroad.evidence.ucx_records import Complaint
from kvroad.plan import Claim
from kvroad.proof.diagnose import diagnose_complaints, diagnose_pulls, diagnose_row
from kvroad.proof.raw import Evidence, read_raw
from kvroad.proof.road import is_on_road, road_tables, seen_road
from kvroad.proof.witness import Outcome, Witness
from kvroad.proof.witnesses.counters import byte_counter
from kvroad.proof.witnesses.serving import cache_check, kv_log, load, options, served_telemetry
from kvroad.proof.witnesses.ucx import environment, protocol_table, telemetry, use_counts

__all__ = ["judge", "judge_raw", "witnesses_of"]

PROVEN, REFUSED, FAILED = "proven", "refused", "failed"


# What a launch of the same arm would meet again; counts, counters and crashes may differ.
_REPEATING = ("environment", "protocol_table")


_MANDATORY = ("environment", "protocol_table", "telemetry")


# What serving engines need besides; of one that serves alone, no road is claimed.
_SERVING = ("load", "options")


# Witnesses that tell of the engines and their load and nothing of the road.
_NO_ROAD = (*_MANDATORY, *_SERVING, "kv_log", "cache_check")


_ORDER = (
    "environment",
    "protocol_table",
    "telemetry",
    "load",
    "options",
    "kv_log",
    "cache_check",
    "use_counts",
    "nic_bytes",
    "nic_packets",
    "nvlink_bytes",
    "interface_bytes",
)


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
    if evidence.claim.serving is not None:
        engines = (served_telemetry(evidence), load(evidence), options(evidence))
        if _is_alone(evidence):
            return engines
        counters = (witness for kind in KINDS for witness in byte_counter(kind, evidence))
        road = (environment(evidence), protocol_table(evidence))
        return (*road, *counters, *engines, kv_log(evidence), cache_check(evidence))
    return (
        environment(evidence),
        protocol_table(evidence),
        use_counts(evidence),
        *(witness for kind in KINDS for witness in byte_counter(kind, evidence)),
        telemetry(evidence),
    )


def _is_alone(evidence: Evidence) -> bool:
    """Return whether one engine serves alone, so that no road is claimed."""
    return evidence.claim.serving is not None and evidence.claim.serving.is_aggregated


def _mandatory(evidence: Evidence) -> tuple[str, ...]:
    if _is_alone(evidence):
        return ("telemetry", *_SERVING)
    return _MANDATORY if evidence.claim.serving is None else (*_MANDATORY, *_SERVING)


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
    if claim.serving is not None and claim.serving.is_aggregated:
        return f"claimed {claim.transport} (one engine that serves alone) but"
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
    if any(p.is_done for p in evidence.cell_pulls()) or any(evidence.payload().values()):
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
    table = next((w for w in witnesses if w.name == "protocol_table"), None)
    if (table and table.status == "contradicts") or _has_lost_transfer(evidence):
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
    faults = [by_name[n] for n in _ORDER if n in by_name and by_name[n].status == "contradicts"]
    faults += [by_name[n] for n in _mandatory(evidence) if by_name[n].status == "unavailable"]
    is_stopped = evidence.ended().get("status") == "stopped"
    if is_stopped:
        # The measured phases of a stopped cell are missing on purpose.
        faults = [w for w in faults if not _is_early(w) or _has_lost_transfer(evidence)]
    if not faults:
        return None
    worst = faults[0]
    repeats = worst.name in _REPEATING and worst.status == "contradicts"
    reason = f"{_claimed(evidence.claim)} {_sentence(worst)}{_cause(evidence, worst)}"
    return _outcome(evidence, witnesses, REFUSED, reason, worst.where, worst.quote, repeats=repeats)


def _is_early(witness: Witness) -> bool:
    """Return whether a fault is only that the launch was stopped before its load was done."""
    return witness.name in ("telemetry", "load") or (
        witness.name == "options" and witness.status == "unavailable"
    )


def _has_lost_transfer(evidence: Evidence) -> bool:
    told = (phase.transfers for phase in evidence.cell_served())
    is_lost = any(t is not None and t.failed for t in told)
    return is_lost or any(not p.is_done for p in evidence.cell_pulls())


def _sentence(witness: Witness) -> str:
    kind, _, unit = witness.name.rpartition("_")
    if unit in ("bytes", "packets"):
        return f"{kind} counters saw {witness.seen}, expected {witness.expected} ({witness.where})"
    return f"{witness.seen} ({witness.where})"


def _cause(evidence: Evidence, witness: Witness) -> str:
    """Return what is known of the cause of a fault, as the rest of its sentence."""
    if witness.name == "telemetry":
        found = diagnose_pulls(evidence.pulls)
        return f": {found}" if found else _advice(evidence)
    if witness.name == "environment":
        return _advice(evidence)
    is_claimed = set(seen_road(evidence).split("+")) <= set(evidence.claim.roads)
    if is_claimed and witness.name.endswith("_bytes") and witness.expected.startswith("at most"):
        return ": UCX tells of no such road, so another program may have used it meanwhile"
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
    kind = str(first.get("kind", "the agent")).rpartition("_")[0]
    what = f"{kind} counters saw {first.get('seen')}, expected {first.get('expected')}"
    reason = f"{_claimed(evidence.claim)} after warm-up {what if first else ended.get('reason')}"
    where = str(first.get("where", "events.jsonl"))
    return _outcome(evidence, witnesses, REFUSED, reason, where, "")


def _proof(evidence: Evidence, witnesses: tuple[Witness, ...]) -> Outcome:
    claim = evidence.claim
    names = ", ".join(w.name for w in witnesses if w.status == "agrees")
    if _is_alone(evidence):
        first = witnesses[0]
        reason = f"{first.seen}: one engine served alone; {names} agree"
        return _outcome(evidence, witnesses, PROVEN, reason, first.where, first.quote, "none")
    table = next(w for w in witnesses if w.name == "protocol_table")
    agreeing = [w for w in witnesses if w.status == "agrees" and w.name not in _NO_ROAD]
    if not agreeing:
        reason = f"{_claimed(claim)} no use count and no byte counter is there to confirm it"
        return _outcome(evidence, witnesses, REFUSED, reason, table.where, table.quote)
    deed = "reads" if claim.operation == "read" else "writes"
    reason = f"{deed} went by {table.seen}; {names} agree"
    return _outcome(evidence, witnesses, PROVEN, reason, table.where, table.quote)
