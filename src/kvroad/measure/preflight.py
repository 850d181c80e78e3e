"""What every host of a study must have before anything is launched on it: one table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from kvroad.errors import UserError
from kvroad.files import write_json
from kvroad.hosts import RunningHost, open_host
from kvroad.measure.host_fitness import disk, findings_of, free_bytes
from kvroad.measure.lost_hosts import note_lost
from kvroad.study.design import Design
from kvroad.study.fields import Host, Study
from kvroad.study.kinds import CONNECTIONS, OK, REFUSED, HostFinding
from kvroad.study.sides import hosts_of, on_host

__all__ = ["check_host", "check_hosts", "check_once", "refuse", "table_lines"]

_CHECKED_AT_ONCE = 8


def check_host(
    study: Study,
    design: Design,
    host: RunningHost,
    results_dir: Path,
    say: Callable[[str], None] = print,
) -> list[dict[str, str]]:
    """Check every host, write the tables beside the results and return their rows.

    Raises
    ------
    UserError
        For the first check that fails, with what would pass.
    """
    rows: list[dict[str, str]] = []
    for part in host.hosts():
        findings = [*findings_of(study, design, part), disk("disk here", *free_bytes(results_dir))]
        table = [asdict(finding) for finding in findings]
        write_json(results_dir / "hosts" / part.host.name / "preflight.json", table)
        rows += [{"host": part.host.name, **row} for row in table]
        if any(finding.status != OK for finding in findings):
            for line in table_lines(findings, part.label):
                say(line)
        refuse(findings, part.label)
    return rows


def check_once(
    study: Study,
    design: Design,
    host: RunningHost,
    results_dir: Path,
    done: Path,
    say: Callable[[str], None],
) -> None:
    """Check hosts as `check_host` does, unless ``done`` says that it was done already."""
    if not done.exists():
        write_json(done, check_host(study, design, host, results_dir, say))


def check_hosts(
    study: Study,
    design: Design,
    results_dir: Path,
    run_id: str,
    names: Collection[str],
    say: Callable[[str], None] = print,
) -> None:
    """Check the named hosts of a study, all at once.

    Of several hosts those that fail are lost for this run, and the others go on. Nodes that a
    job allocates are checked in the job that has got them.

    Raises
    ------
    UserError
        When a study's one host fails, or all of them do.
    """
    todo = [host for host in hosts_of(study) if host.name in names]
    todo = [host for host in todo if not CONNECTIONS[host.connection].is_allocated_in_job]
    if not todo:
        return
    if not study.hosts:
        with closing(open_host(study.host)) as host:
            check_host(study, design, host, results_dir, say)
        return

    def check(spec: Host) -> str:
        try:
            with closing(open_host(spec)) as host:
                check_host(on_host(study, spec.name), design, host, results_dir, say)
        except UserError as error:
            note_lost(results_dir, run_id, spec.name, str(error))
            say(f"host {spec.name} is left out of this run: {error}")
            return str(error)
        return ""

    with ThreadPoolExecutor(_CHECKED_AT_ONCE) as pool:
        errors = list(pool.map(check, todo))
    if all(errors):
        raise UserError(f"no host of {study.name} can be used; {todo[0].name}: {errors[0]}")


def refuse(findings: list[HostFinding], label: str) -> None:
    """Raise UserError for the first finding that is refused, and count the others."""
    refused = [finding for finding in findings if finding.status == REFUSED]
    if not refused:
        return
    first = refused[0]
    more = f" (and {len(refused) - 1} more, see the table)" if len(refused) > 1 else ""
    needed = f"; {first.needed}" if first.needed else ""
    raise UserError(f"{label}: {first.check}: {first.found}{needed}{more}")


def table_lines(findings: list[HostFinding], label: str) -> list[str]:
    """Return the table as lines of text."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"preflight of {label}:"]
    for finding in findings:
        needed = f"; {finding.needed}" if finding.needed and finding.status != OK else ""
        lines.append(f"  {finding.check:{width}}  {finding.status:7}  {finding.found}{needed}")
    return lines
