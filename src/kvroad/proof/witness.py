"""What a witness is, what it says of a road, and what all of them together come to.

`WitnessKind` is declared here and not beside the other kinds in `kvroad.study.kinds`: it
needs the evidence, and nothing below the proof needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from kvroad.evidence.redact import redact_text
from kvroad.plan import Claim
from kvroad.proof.raw import Evidence
from kvroad.registry import kinds_in

__all__ = [
    "AGREES",
    "CONTRADICTS",
    "UNAVAILABLE",
    "Finding",
    "Outcome",
    "Witness",
    "WitnessKind",
    "always",
    "claims_road",
    "conclude",
    "never",
    "plain_reason",
    "witness_kinds",
]

AGREES, CONTRADICTS, UNAVAILABLE = "agrees", "contradicts", "unavailable"


@dataclass(frozen=True)
class Witness:
    """What one witness says: ``agrees``, ``contradicts`` or ``unavailable``.

    ``seen`` completes the sentence "claimed … but …"; ``quote`` is the line it goes by.
    """

    name: str
    status: str
    expected: str
    seen: str
    where: str
    quote: str = ""


@dataclass(frozen=True)
class Finding:
    """One fault that a witness found."""

    status: str
    seen: str
    where: str
    quote: str = ""


def conclude(name: str, expected: str, faults: list[Finding], good: Finding) -> Witness:
    """Let a contradiction win over what is merely missing, and either over agreement."""
    for status in (CONTRADICTS, UNAVAILABLE):
        for fault in faults:
            if fault.status == status:
                seen, quote = redact_text(fault.seen), redact_text(fault.quote.strip())
                return Witness(name, status, expected, seen, fault.where, quote)
    return Witness(name, AGREES, expected, good.seen, good.where, redact_text(good.quote.strip()))


def always(claim: Claim) -> bool:
    """Hold for every claim."""
    return True


def never(claim: Claim) -> bool:
    """Hold for no claim."""
    return False


def claims_road(claim: Claim) -> bool:
    """Hold for every claim but that of an engine that serves alone."""
    return not claim.is_alone


def plain_reason(evidence: Evidence, witness: Witness) -> str:
    """Return what a witness saw, and where."""
    return f"{witness.seen} ({witness.where})"


@dataclass(frozen=True)
class WitnessKind:
    """A kind of witness: it reads the evidence of one kind, and holds it against the claim.

    Whichever contradicts refuses the cell.

    Parameters
    ----------
    name
        That of its witness.
    hear
        Reads the evidence; None where there is nothing to be said.
    expected
        What ``kvroad plan`` prints of it; empty: nothing.
    place
        Where an outcome lists it, the lowest first; those of one place by module and line.
    applies
        Whether it is heard at all of a claim.
    is_mandatory
        Whether a claim is refused where it is unavailable.
    proves_road
        Whether its agreement can prove the road, beside all that is mandatory.
    names_road
        Whether its line is the one that names the road, which a proof quotes.
    repeats
        Whether every launch of the arm would meet its contradiction again.
    early
        The statuses that are no fault where a launch was stopped after its warm-up.
    is_shared
        Whether others cause what it sees too, so that any other contradiction is told first.
    reason
        Completes the sentence "claimed … but …" where it refuses; with the cause, if known.
    """

    name: str
    hear: Callable[[Evidence], Witness | None]
    expected: Callable[[Claim], str]
    place: int
    applies: Callable[[Claim], bool] = claims_road
    is_mandatory: Callable[[Claim], bool] = never
    proves_road: bool = False
    names_road: bool = False
    repeats: bool = False
    early: tuple[str, ...] = ()
    is_shared: bool = False
    reason: Callable[[Evidence, Witness], str] = plain_reason


@functools.cache
def witness_kinds() -> tuple[WitnessKind, ...]:
    """Return every kind of witness, in the order in which an outcome lists them."""
    found = kinds_in("kvroad.proof.witnesses", WitnessKind)
    return tuple(sorted(found.values(), key=lambda kind: kind.place))


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
