"""The witness ``telemetry``: what NIXL told of each pull, or vLLM counted of its transfers."""

from __future__ import annotations

from collections.abc import Iterator

from kvroad.evidence.nixl import Pull
from kvroad.evidence.serving import ServedPhase
from kvroad.evidence.vllm import Transfers
from kvroad.plan import Claim
from kvroad.proof.diagnose import advice, diagnose_pulls
from kvroad.proof.raw import Evidence
from kvroad.proof.witness import (
    AGREES,
    CONTRADICTS,
    UNAVAILABLE,
    Finding,
    Witness,
    WitnessKind,
    always,
    conclude,
    plain_reason,
)

__all__ = ["TELEMETRY"]


def _of_pulls(evidence: Evidence) -> Witness:
    """Hold NIXL's telemetry of every pull against the plan."""
    pulls = evidence.cell_pulls
    n_planned = sum(evidence.planned.values())
    faults = []
    failed = [p for p in pulls if not p.is_done]
    if failed:
        first = failed[0]
        seen = f"{len(failed)} of {len(pulls)} transfers failed: {first.error or first.state}"
        faults.append(Finding(CONTRADICTS, seen, first.where))
    for log in evidence.pulls:
        faults += [Finding(CONTRADICTS, p.reason, p.where) for p in log.problems[:1]]
    for pull in (p for p in pulls if p.is_done):
        faults += _deviations(pull)
    for (cell, phase), n_pulls in evidence.planned.items():
        got = sum(p.phase == phase and p.cell == cell for p in pulls)
        if got < n_pulls:
            seen = f"{got} of {n_pulls} pulls planned for phase {phase} were made"
            faults.append(Finding(CONTRADICTS if pulls else UNAVAILABLE, seen, "pulls"))
    if not pulls:
        faults.append(Finding(UNAVAILABLE, "no pull was made", "pulls"))
    expected = f"{n_planned} pulls with descriptors and bytes as planned, none failed"
    moved = sum(p.bytes_moved or 0 for p in pulls)
    where = pulls[0].file if pulls else ""
    good = Finding(AGREES, f"{len(pulls)} pulls, {moved} bytes, none failed", where)
    return conclude("telemetry", expected, faults, good)


def _deviations(pull: Pull) -> Iterator[Finding]:
    if pull.descriptors_moved is None or pull.bytes_moved is None:
        yield Finding(UNAVAILABLE, "NIXL gave no telemetry", pull.where)
    elif pull.descriptors_moved != pull.descriptors_planned:
        seen = f"NIXL moved {pull.descriptors_moved} of {pull.descriptors_planned} descriptors"
        yield Finding(CONTRADICTS, seen, pull.where)
    elif pull.bytes_moved != pull.bytes_planned:
        seen = f"NIXL moved {pull.bytes_moved} of {pull.bytes_planned} bytes"
        yield Finding(CONTRADICTS, seen, pull.where)


def _of_requests(evidence: Evidence) -> Witness:
    """Hold vLLM's counts of transfers against the plan.

    One transfer for each request and rank, none failed or expired, no prompt computed or
    found in a cache by decode itself: vLLM may answer 200 with wrong tokens otherwise. An
    engine that serves alone must have transferred nothing. Descriptors and bytes stand
    beside the prediction: NIXL merges neighbours, so that they may differ.
    """
    phases = {(p.cell, p.phase): p for p in evidence.cell_served()}
    faults: list[Finding] = []
    for key, planned in evidence.planned.items():
        phase = phases.get(key)
        if phase is None or phase.transfers is None:
            where = phase.where if phase else "serving"
            faults.append(Finding(UNAVAILABLE, f"no metrics of phase {key[1]}", where))
        elif evidence.claim.is_alone:
            faults += _alone(phase, phase.transfers)
        else:
            faults += _transfer_faults(phase, phase.transfers, planned)
    if evidence.claim.is_alone:
        n_good = sum(len(phase.good) for phase in phases.values())
        good = Finding(AGREES, f"no transfer in {n_good} requests", "serving")
        return conclude("telemetry", "no transfer at all", faults, good)
    expected = f"{sum(evidence.planned.values())} transfers, none failed or expired"
    return conclude("telemetry", expected, faults, _transfers_seen(list(phases.values())))


def _alone(phase: ServedPhase, moved: Transfers) -> Iterator[Finding]:
    if moved.count or moved.n_bytes:
        seen = f"{moved.count:.0f} transfers of an engine that serves alone"
        yield Finding(CONTRADICTS, seen, phase.where)
    elif moved.locally_computed <= 0 < len(phase.good):
        seen = "the engine computed none of the prompts that it answered"
        yield Finding(CONTRADICTS, seen, phase.where)


def _transfer_faults(phase: ServedPhase, moved: Transfers, planned: int) -> Iterator[Finding]:
    """Find what failed, expired or was not pulled: vLLM answers 200 all the same."""
    name = phase.phase
    if moved.reset:
        yield Finding(CONTRADICTS, f"decode's counters fell in phase {name}", phase.where)
        return
    for count, what in (
        (moved.failed, "transfers failed"),
        (moved.failed_notifications, "notifications failed"),
        (moved.expired, "requests' KV blocks expired"),
    ):
        if count:
            seen = f"{count:.0f} {what} in phase {name}, which may give wrong tokens"
            yield Finding(CONTRADICTS, seen, phase.where)
    if moved.locally_cached:
        seen = f"decode had {moved.locally_cached:.0f} prompt tokens in its own cache in {name}"
        yield Finding(CONTRADICTS, seen, phase.where)
    if moved.locally_computed >= phase.planned.prompt_tokens:
        tokens = f"{moved.locally_computed:.0f} prompt tokens"
        seen = f"decode computed {tokens} itself in phase {name}: it served aggregated"
        yield Finding(CONTRADICTS, seen, phase.where)
    ranks = planned // max(1, phase.planned.requests)
    least = planned - ranks * phase.n_failed
    if not least <= moved.count <= planned:
        seen = f"{moved.count:.0f} transfers in phase {name} for {phase.planned.requests} requests"
        yield Finding(CONTRADICTS, f"{seen}, {planned} were planned", phase.where)


def _transfers_seen(phases: list[ServedPhase]) -> Finding:
    """Sum the transfers of all phases, with a transfer's size beside the predicted one."""
    known = [(phase, phase.transfers) for phase in phases if phase.transfers is not None]
    count = sum(transfers.count for _, transfers in known)
    if not count:
        return Finding(AGREES, "no transfer", "serving")
    n_bytes = sum(transfers.n_bytes for _, transfers in known)
    n_descriptors = sum(transfers.descriptors for _, transfers in known)
    seen = [f"{count:.0f} transfers, {n_bytes:.0f} bytes, none failed"]
    planned = known[0][0].planned
    for what, predicted, total in (
        ("descriptors", planned.descriptors, n_descriptors),
        ("bytes", planned.pull_bytes, n_bytes),
    ):
        each = total / count
        if abs(each - predicted) > 1e-6 * predicted:
            why = " (NIXL merges neighbours)" if what == "descriptors" and each < predicted else ""
            seen.append(f"{each:,.1f} {what} each where the layout predicts {predicted:,.0f}{why}")
        else:
            seen.append(f"{predicted:,.0f} {what} each as predicted")
    return Finding(AGREES, "; ".join(seen), known[0][0].where)


def _expected(claim: Claim) -> str:
    if claim.is_alone:
        return "no transfer at all"
    return "descriptors and bytes as planned, none failed"


def _reason(evidence: Evidence, witness: Witness) -> str:
    merged = diagnose_pulls(evidence.pulls)
    cause = f": {merged}" if merged else advice(evidence.logs.values())
    return plain_reason(evidence, witness) + cause


TELEMETRY = WitnessKind(
    name="telemetry",
    hear=lambda e: _of_pulls(e) if e.claim.serving is None else _of_requests(e),
    expected=_expected,
    place=50,
    applies=always,
    is_mandatory=always,
    # The measured phases of a stopped cell are missing on purpose.
    early=(CONTRADICTS, UNAVAILABLE),
    reason=_reason,
)
