"""What a witness says of a road, and what all of them together come to."""

from __future__ import annotations

from dataclasses import dataclass

from kvroad.evidence.redact import redact_text

__all__ = ["AGREES", "CONTRADICTS", "UNAVAILABLE", "Finding", "Outcome", "Witness", "conclude"]

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
