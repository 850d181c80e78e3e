"""Witnesses of a launch of serving engines: what they answered, logged, and were set to."""

from __future__ import annotations

from collections.abc import Iterator

from kvroad.evidence.serving import (
    DIFFERENT,
    EQUAL,
    NOT_CHECKED,
    ServedPhase,
    cache_check_of,
    cache_facts,
)
from kvroad.evidence.vllm import totals_of
from kvroad.plan import Claim, Serving
from kvroad.proof.backends.ucx import road_tables
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
)

__all__ = ["CACHE_CHECK", "KV_LOG", "LOAD", "OPTIONS", "cache_check", "kv_log"]

# A tokenizer may put a token of its own before a prompt.
_INPUT_SLACK = 0.01


def _serving(evidence: Evidence) -> Serving:
    assert evidence.claim.serving is not None
    return evidence.claim.serving


def load(evidence: Evidence) -> Witness:
    """Hold the requests against the plan: how many failed, and the lengths of the others.

    What the load generator's exit status says is not enough: it may be 0 with errors.
    """
    serving = _serving(evidence)
    faults: list[Finding] = []
    phases = evidence.cell_served()
    for phase in phases:
        faults += _load_faults(phase, serving)
    n_good, n_failed = sum(len(p.good) for p in phases), sum(p.n_failed for p in phases)
    if not phases:
        faults.append(Finding(UNAVAILABLE, "no request was made", "serving"))
    failed = f", {n_failed} failed and left out" if n_failed else ""
    seen = f"{n_good} requests with lengths as asked{failed}"
    expected = LOAD.expected(evidence.claim)
    return conclude("load", expected, faults, Finding(AGREES, seen, "serving"))


def _expected_load(claim: Claim) -> str:
    share = claim.serving.failed_share_at_most if claim.serving is not None else 0.0
    return f"at most {100 * share:g} % of the requests failed, lengths as asked"


def _load_faults(phase: ServedPhase, serving: Serving) -> Iterator[Finding]:
    """Find failed requests, and the first answer whose lengths are not those asked for."""
    bad = next((request for request in phase.requests if request.error is not None), None)
    if phase.n_failed > serving.failed_share_at_most * phase.planned.requests:
        cause = phase.load.error or (bad.error if bad else "requests are missing")
        seen = (
            f"{phase.n_failed} of {phase.planned.requests} requests of phase {phase.phase} failed"
        )
        yield Finding(CONTRADICTS, f"{seen}: {cause}", bad.where if bad else phase.where)
    elif phase.load.returncode:
        cause = str(phase.load.error or "the load generator failed")
        yield Finding(CONTRADICTS, f"phase {phase.phase}: {cause}", phase.where)
    for request in phase.good:
        wanted, got = phase.planned.output_tokens, request.output_tokens
        if got != wanted:
            seen = f"a request of phase {phase.phase} has {got} output tokens, asked were {wanted}"
            yield Finding(CONTRADICTS, seen, request.where)
            return
        prompt, tokens = phase.planned.prompt_tokens, request.input_tokens
        if tokens is not None and abs(tokens - prompt) > _INPUT_SLACK * prompt:
            seen = f"a prompt of phase {phase.phase} has {tokens} tokens, asked were {prompt}"
            yield Finding(CONTRADICTS, seen, request.where)
            return


def options(evidence: Evidence) -> Witness:
    """Hold what the engines say of their options against what they were given."""
    serving = _serving(evidence)
    faults: list[Finding] = []
    for line in serving.log_lines:
        has = line.text in evidence.texts.get(line.process, frozenset())
        if has != line.is_there:
            what = "says" if has else "does not say"
            seen = f"{line.option} did not take effect: {line.process} {what} `{line.text}`"
            faults.append(Finding(CONTRADICTS, seen, f"{line.process}.log"))
    metrics = next((p.decode for p in evidence.cell_served() if p.decode is not None), None)
    for label in serving.labels:
        values = metrics.label(label.metric, label.label) if metrics else set()
        if not values:
            seen = f"decode does not tell its {label.label} ({label.option})"
            faults.append(Finding(UNAVAILABLE, seen, label.metric))
        elif values != {label.value}:
            shown = ", ".join(sorted(values))
            seen = f"{label.option} did not take effect: {label.label} is {shown}"
            faults.append(Finding(CONTRADICTS, f"{seen}, asked was {label.value}", label.metric))
    faults += _thread_faults(evidence, serving)
    n = len(serving.log_lines) + len(serving.labels)
    good = Finding(AGREES, f"{n} settings as asked", "decode-0.log")
    return conclude("options", OPTIONS.expected(evidence.claim), faults, good)


def _thread_faults(evidence: Evidence, serving: Serving) -> Iterator[Finding]:
    """Find more than one posting worker where none beside the engine's own was asked for."""
    if serving.num_threads != 0 or serving.is_aggregated:
        return
    for file in evidence.initiators:
        workers: dict[int, set[int]] = {}
        for table in road_tables(evidence.logs.get(file), evidence.claim):
            workers.setdefault(table.pid, set()).add(table.tid)
        for pid, threads in workers.items():
            if len(threads) > 1:
                seen = f"engine.num_threads=0 did not take effect: {len(threads)} threads of"
                yield Finding(CONTRADICTS, f"{seen} process {pid} post", file)


def cache_check(evidence: Evidence) -> Witness:
    """Tell whether the blocks that decode pulled for the probe equal those of prefill.

    A plug-in in both engines tells; where it could not, nothing is known.
    """
    name, expected = CACHE_CHECK.name, CACHE_CHECK.expected(evidence.claim)
    found = cache_check_of(evidence.events)
    facts = "; ".join(cache_facts(evidence.events))
    if found == EQUAL:
        return Witness(name, AGREES, expected, facts, "events.jsonl")
    if found == DIFFERENT:
        seen = "decode's blocks of the probe differ from prefill's: it answers from a wrong cache"
        return Witness(name, CONTRADICTS, expected, seen, "events.jsonl")
    return Witness(name, UNAVAILABLE, expected, facts or NOT_CHECKED, "")


def kv_log(evidence: Evidence) -> Witness:
    """Hold the log lines of decode against its metrics, which count the same transfers.

    Over the whole launch, since a line tells no phase; sums within what rounding takes.
    """
    name, expected = KV_LOG.name, KV_LOG.expected(evidence.claim)
    snapshots = [phase.decode for phase in evidence.served if phase.decode is not None]
    if not evidence.kv_lines or not snapshots:
        return Witness(name, UNAVAILABLE, expected, "decode logged no transfer", "decode-0.log")

    def cumulated(metric: str) -> float:
        return max(snapshot.total(metric) for snapshot in snapshots)

    lines = totals_of(evidence.kv_lines)
    where, quote = evidence.kv_lines[-1].where, evidence.kv_lines[-1].text
    count = cumulated("vllm:nixl_xfer_time_seconds_count")
    seconds = cumulated("vllm:nixl_xfer_time_seconds_sum")
    n_bytes = cumulated("vllm:nixl_bytes_transferred_sum")
    seen = f"lines tell {lines.transfers} of {count:.0f} transfers"
    if lines.transfers < count:
        return Witness(name, UNAVAILABLE, expected, f"{seen}: some are missing", where, quote)
    if lines.transfers > count and _went_on(evidence):
        seen += ": the launch broke off behind its last snapshot"
        return Witness(name, UNAVAILABLE, expected, seen, where, quote)
    is_equal = (
        lines.transfers == count
        and abs(lines.xfer_ms / 1e3 - seconds) <= lines.xfer_slack_ms / 1e3 + 1e-6
        and abs(lines.n_bytes - n_bytes) <= lines.bytes_slack + 1
    )
    seen += f", {lines.n_bytes:.0f} of {n_bytes:.0f} bytes, {lines.xfer_ms / 1e3:.6f} of "
    seen += f"{seconds:.6f} s"
    return Witness(name, AGREES if is_equal else CONTRADICTS, expected, seen, where, quote)


def _went_on(evidence: Evidence) -> bool:
    """Return whether decode may have pulled what no snapshot holds: a phase was cut short."""
    ends = [event.get("status") for event in evidence.events if event.get("event") == "end"]
    is_cut = any(phase.decode is None for phase in evidence.served)
    return is_cut or (bool(ends) and ends[-1] != "complete")


def _serves(claim: Claim) -> bool:
    return claim.serving is not None


def _serves_apart(claim: Claim) -> bool:
    return claim.serving is not None and not claim.is_alone


LOAD = WitnessKind(
    name="load",
    hear=load,
    expected=_expected_load,
    place=60,
    applies=_serves,
    is_mandatory=always,
    early=(CONTRADICTS, UNAVAILABLE),
)
OPTIONS = WitnessKind(
    name="options",
    hear=options,
    expected=lambda claim: "every option as asked",
    place=70,
    applies=_serves,
    is_mandatory=always,
    early=(UNAVAILABLE,),
)
KV_LOG = WitnessKind(
    name="kv_log",
    hear=kv_log,
    expected=lambda claim: "as many transfers, bytes and seconds as the metrics say",
    place=80,
    applies=_serves_apart,
)
CACHE_CHECK = WitnessKind(
    name="cache_check",
    hear=cache_check,
    expected=lambda claim: "decode's blocks of the probe equal prefill's",
    place=90,
    applies=_serves_apart,
)
