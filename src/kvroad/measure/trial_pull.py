"""One small pull per transport on a host, with all witnesses, to see which road it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvroad.engines import plan_of
from kvroad.evidence.events import AgentEvent
from kvroad.hosts import RunningHost
from kvroad.measure.host_fitness import findings_of
from kvroad.proof.diagnose import Diagnosis, diagnose_complaints, diagnose_pulls
from kvroad.proof.judge import judge
from kvroad.proof.raw import read_raw
from kvroad.proof.witness import Outcome
from kvroad.study.design import Design, Launch, make_design
from kvroad.study.fields import Study
from kvroad.study.kinds import OK, REFUSED, HostFinding

__all__ = ["DEFAULTS", "ArmFinding", "HostTable", "examine_arms", "examine_hosts", "is_fit"]

# A study of one short pull; what the user says of the same keys wins.
DEFAULTS = (
    "study=smoke",
    "name=doctor",
    "session=doctor",
    "launches=2",
    "prompt_tokens=[256]",
    "workload.warmup_pulls=1",
    "workload.pulls=1",
    "workload.concurrency=1",
    "workload.pulls_in_flight=1",
    # What a host cannot offer is tried all the same: UCX's own line says why not.
    "host.strict=false",
)
_TRANSPORT = "transport "


@dataclass(frozen=True)
class HostTable:
    """The preflight table of one host."""

    label: str
    findings: list[HostFinding]


@dataclass(frozen=True)
class ArmFinding:
    """How the pull of one arm went, and the causes that are known of it.

    ``host_says`` is what the preflight found missing for its transport.
    """

    arm: str
    claimed: list[str]
    outcome: Outcome
    causes: list[Diagnosis] = field(default_factory=list)
    host_says: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether the road is the one claimed."""
        return self.outcome.outcome == "proven"


def examine_hosts(study: Study, design: Design, host: RunningHost) -> list[HostTable]:
    """Return the preflight table of every host of a study."""
    return [HostTable(part.label, findings_of(study, design, part)) for part in host.hosts()]


def is_fit(tables: Sequence[HostTable]) -> bool:
    """Return whether a pull can be tried: nothing is refused but what a transport needs."""
    return not any(
        finding.status == REFUSED and not finding.check.startswith(_TRANSPORT)
        for table in tables
        for finding in table.findings
    )


def examine_arms(
    study: Study,
    host: RunningHost,
    tables: Sequence[HostTable],
    folder: Path,
    on_arm: Callable[[ArmFinding], None],
) -> list[ArmFinding]:
    """Make a pull per arm, one after the other; raw files are left below ``folder``.

    Raises
    ------
    UserError
        When the host is busy or lost.
    """
    found = []
    design = make_design(study)
    for launch in _first_launches(design):
        finding = _examine(study, launch, host, tables, folder)
        on_arm(finding)
        found.append(finding)
    return found


def _first_launches(design: Design) -> list[Launch]:
    first: dict[str, Launch] = {}
    for launch in design.launches:
        first.setdefault(launch.arm.label, launch)
    return [first[arm] for arm in design.arms]


def _examine(
    study: Study, launch: Launch, host: RunningHost, tables: Sequence[HostTable], folder: Path
) -> ArmFinding:
    raw_dir = folder / launch.arm.label
    events: list[AgentEvent] = []
    plan = plan_of(study, launch, launch.cells)
    host.run(plan, raw_dir, events.append)
    if any(event["event"] == "recovered" for event in events):
        # What an earlier doctor left there says how the host was then.
        host.run(plan, raw_dir, lambda event: None)
    evidence = read_raw(raw_dir, launch.cells[0].id)
    causes = diagnose_complaints(evidence.logs.values())
    merged = diagnose_pulls(evidence.pulls)
    return ArmFinding(
        launch.arm.label,
        list(launch.arm.transport.roads),
        judge(evidence, study.road),
        [*causes, *([merged] if merged else [])],
        _missing(tables, launch.arm.transport_name),
    )


def _missing(tables: Sequence[HostTable], transport: str) -> str:
    """Return what the hosts lack for a transport, as the preflight found it."""
    texts = [
        f"{table.label}: {finding.found}{f'; {finding.needed}' if finding.needed else ''}"
        for table in tables
        for finding in table.findings
        if finding.check == f"{_TRANSPORT}{transport}" and finding.status != OK
    ]
    return "; ".join(texts)
