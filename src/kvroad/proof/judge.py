"""The road proof: from the records of a raw folder to proven, refused or failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kvroad.errors import UserError
from kvroad.evidence.log import Complaint
from kvroad.evidence.redact import redact_text
from kvroad.evidence.weigh import Tolerances
from kvroad.files import read_json
from kvroad.plan import Claim
from kvroad.proof.diagnose import advice, diagnose_complaints
from kvroad.proof.raw import Evidence, read_raw
from kvroad.proof.witness import (
    AGREES,
    CONTRADICTS,
    UNAVAILABLE,
    Outcome,
    Witness,
    WitnessKind,
    witness_kinds,
)

__all__ = ["judge", "judge_cell", "judge_raw", "witnesses_of"]

PROVEN, REFUSED, FAILED = "proven", "refused", "failed"


def judge_cell(cell_folder: Path, tolerances: Tolerances | None = None) -> Outcome:
    """Judge a measured cell: the folder that holds ``cell.json`` and ``raw/`` beside it.

    A door that others build on: the workflow, archives that are judged again, and tests. The
    name, both parameters and the fields of `Outcome` stay as they are.

    Parameters
    ----------
    tolerances
        Bounds of the byte witnesses in place of those that the plan of the launch has.

    Raises
    ------
    UserError
        When ``cell.json`` names no cell or ``raw/`` holds no plan.
    """
    facts = read_json(cell_folder / "cell.json")
    cell = None if facts is None else facts.get("cell")
    if not isinstance(cell, str):
        raise UserError(f"{cell_folder / 'cell.json'}: missing, or not the facts of a cell")
    return judge_raw(cell_folder / "raw", tolerances, cell)


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

    Proven needs all that is mandatory for the claim, at least one agreeing witness whose kind
    proves a road, and none that contradicts. Bytes that arrived wrong and launches that
    broke off have failed; all else is refused.
    """
    if tolerances is not None:
        claim = dataclasses.replace(
            evidence.claim,
            carried_at_least=tolerances.carried_at_least,
            not_carried_at_most=tolerances.not_carried_at_most,
            idle_bytes_per_s=tolerances.idle_bytes_per_s,
        )
        evidence = dataclasses.replace(evidence, claim=claim)
    case = _Case(evidence, _hear(evidence))
    return (
        _data_error(case)
        or _nothing_started(case)
        or _broken_off(case)
        or _refusal(case)
        or _stopped(case)
        or _proof(case)
    )


def witnesses_of(evidence: Evidence) -> tuple[Witness, ...]:
    """Return what every witness of the claim says, in the order in which outcomes list them."""
    return tuple(witness for _, witness in _hear(evidence))


def _hear(evidence: Evidence) -> list[tuple[WitnessKind, Witness]]:
    kinds = [kind for kind in witness_kinds() if kind.applies(evidence.claim)]
    heard = [(kind, kind.hear(evidence)) for kind in kinds]
    return [(kind, witness) for kind, witness in heard if witness is not None]


@dataclasses.dataclass(frozen=True)
class _Case:
    """The evidence of one cell, and what each witness says of it."""

    evidence: Evidence
    heard: list[tuple[WitnessKind, Witness]]

    def outcome(
        self,
        outcome: str,
        reason: str,
        where: str,
        quote: str,
        seen: str | None = None,
        repeats: bool = False,
    ) -> Outcome:
        """Return an outcome whose texts hold no secrets and whose reason is one line."""
        return Outcome(
            outcome,
            " ".join(redact_text(reason).split()),
            list(self.evidence.claim.roads),
            seen or self.evidence.seen_road(),
            where,
            redact_text(quote),
            repeats,
            tuple(witness for _, witness in self.heard),
        )


def _claimed(claim: Claim) -> str:
    if claim.is_alone:
        return f"claimed {claim.transport} (one engine that serves alone) but"
    return f"claimed {claim.transport} ({' or '.join(claim.roads)}) but"


def _data_error(case: _Case) -> Outcome | None:
    pulls = case.evidence.cell_pulls
    wrong = [p for p in pulls if p.is_done and p.verified is False]
    if not wrong:
        return None
    reason = (
        f"data error: {len(wrong)} of {len(pulls)} pulls brought other bytes than prefill wrote, "
        f"first pull {wrong[0].pull} of rank {wrong[0].rank} in phase {wrong[0].phase} "
        f"({wrong[0].where})"
    )
    return case.outcome(FAILED, reason, wrong[0].where, "")


def _nothing_started(case: _Case) -> Outcome | None:
    """Refuse a road that cannot start: NIXL made no backend and no pull was done."""
    evidence = case.evidence
    if any(p.is_done for p in evidence.cell_pulls) or any(evidence.payload.values()):
        return None
    complaints = [c for log in evidence.logs.values() for c in log.complaints]
    if not any("NIXL_ERR_BACKEND" in c.message for c in complaints):
        return None
    known = diagnose_complaints(evidence.logs.values())
    if known:
        where, quote, why = known[0].where, known[0].quote, str(known[0])
    else:
        worst = min(complaints, key=lambda complaint: _gravity(complaint, evidence.claim))
        where, quote, why = worst.where, worst.text.strip(), f"{worst.message} ({worst.where})"
    reason = f"{_claimed(evidence.claim)} nothing started: {why}"
    return case.outcome(REFUSED, reason, where, quote, "none", repeats=True)


def _gravity(complaint: Complaint, claim: Claim) -> tuple[bool, bool]:
    """Sort the backend before NIXL, which only passes on what it said; errors before warnings."""
    return complaint.speaker.lower() != claim.backend, complaint.level == "WARN"


def _broken_off(case: _Case) -> Outcome | None:
    """Fail a launch that did not reach its end, unless the road is known to be wrong."""
    evidence, ended = case.evidence, case.evidence.ended()
    if ended.get("status") in ("complete", "stopped"):
        return None
    is_wrong = any(kind.names_road and w.status == CONTRADICTS for kind, w in case.heard)
    if is_wrong or _has_lost_transfer(evidence):
        return None
    step = ended.get("step") or "the launch"
    why = ended.get("reason") or "the agent left no end event"
    log = evidence.logs.get(_culprit(evidence))
    last = [r for r in log.last_lines if r.text.strip()] if log else []
    quote = " | ".join(r.text.strip() for r in last)
    where = last[-1].where if last else "events.jsonl"
    reason = f"{step} failed: {why}{advice(evidence.logs.values())}"
    return case.outcome(FAILED, reason, where, quote)


def _culprit(evidence: Evidence) -> str:
    """Return the log of the first process that exited with an error, else the posting one's."""
    for event in evidence.events:
        if event.get("event") == "exit" and event.get("returncode"):
            return f"{event.get('process')}.log"
    return evidence.initiators[0]


def _refusal(case: _Case) -> Outcome | None:
    """Refuse for the gravest fault: contradictions before what is missing and must be there."""
    evidence, claim = case.evidence, case.evidence.claim
    # What the engines print comes before what was counted of their road.
    heard = sorted(case.heard, key=lambda pair: (pair[0].proves_road, pair[0].is_shared))
    faults = [(kind, w) for kind, w in heard if w.status == CONTRADICTS]
    faults += [(k, w) for k, w in heard if w.status == UNAVAILABLE and k.is_mandatory(claim)]
    if evidence.ended().get("status") == "stopped" and not _has_lost_transfer(evidence):
        faults = [(kind, w) for kind, w in faults if w.status not in kind.early]
    if not faults:
        return None
    kind, worst = faults[0]
    reason = f"{_claimed(claim)} {kind.reason(evidence, worst)}"
    repeats = kind.repeats and worst.status == CONTRADICTS
    return case.outcome(REFUSED, reason, worst.where, worst.quote, repeats=repeats)


def _has_lost_transfer(evidence: Evidence) -> bool:
    transfers = (phase.transfers for phase in evidence.cell_served())
    is_lost = any(t is not None and t.failed for t in transfers)
    return is_lost or any(not p.is_done for p in evidence.cell_pulls)


def _stopped(case: _Case) -> Outcome | None:
    """Refuse what the agent stopped after warm-up, by the check that stopped it."""
    evidence, ended = case.evidence, case.evidence.ended()
    if ended.get("status") != "stopped":
        return None
    checks = [e for e in evidence.events if e.get("event") == "check" and e.get("ok") is False]
    first = checks[0] if checks else {}
    kind = str(first.get("kind", "the agent")).rpartition("_")[0]
    what = f"{kind} counters saw {first.get('seen')}, expected {first.get('expected')}"
    reason = f"{_claimed(evidence.claim)} after warm-up {what if first else ended.get('reason')}"
    return case.outcome(REFUSED, reason, str(first.get("where", "events.jsonl")), "")


def _proof(case: _Case) -> Outcome:
    """Prove by a witness that can, and quote the line that names the road; refuse without one."""
    claim = case.evidence.claim
    agreeing = [(kind, w) for kind, w in case.heard if w.status == AGREES]
    names = ", ".join(w.name for _, w in agreeing)
    if claim.is_alone:
        first = case.heard[0][1]
        reason = f"{first.seen}: one engine served alone; {names} agree"
        return case.outcome(PROVEN, reason, first.where, first.quote, "none")
    named = [w for kind, w in case.heard if kind.names_road]
    proofs = [w for kind, w in agreeing if kind.proves_road]
    road = next(iter([*named, *proofs]), None)
    where, quote = (road.where, road.quote) if road is not None else ("", "")
    if road is None or not proofs:
        reason = f"{_claimed(claim)} no use count and no byte counter is there to confirm it"
        return case.outcome(REFUSED, reason, where, quote)
    return case.outcome(
        PROVEN, f"{claim.transfers} went by {road.seen}; {names} agree", where, quote
    )
