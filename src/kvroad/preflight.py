"""What a host must have before anything is launched on it."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvroad.cells import write_json
from kvroad.design import Design, Launch
from kvroad.engines.nixl import layout_of, pool_bytes
from kvroad.errors import UserError
from kvroad.hosts import RunningHost
from kvroad.study import Study

__all__ = ["Finding", "check_host", "refuse"]

NIXL_PACKAGES = ("nixl-cu13", "nixl-cu12", "nixl")
# Left to the system and to everything else that runs on the host.
_MEMORY_SHARE = 0.9
_DISK_BYTES = 500_000_000


@dataclass(frozen=True)
class Finding:
    """One line of the preflight table."""

    check: str
    is_ok: bool
    found: str
    needed: str


def check_host(
    study: Study, design: Design, host: RunningHost, results_dir: Path
) -> list[dict[str, Any]]:
    """Check the host, write the table beside the results and return its rows.

    Raises
    ------
    UserError
        For the first check that fails, with what would pass.
    """
    facts = host.facts()
    findings = [
        _nixl(facts, study),
        _memory(facts, study, design),
        _disk(results_dir),
    ]
    rows = [asdict(finding) for finding in findings]
    write_json(results_dir / "hosts" / study.host.name / "preflight.json", rows)
    refuse(findings, study.host.name)
    return rows


def refuse(findings: list[Finding], host: str) -> None:
    """Raise UserError for the first finding that is not ok."""
    for finding in findings:
        if not finding.is_ok:
            raise UserError(f"host {host}: {finding.check}: {finding.found}; {finding.needed}")


def _nixl(facts: dict[str, Any], study: Study) -> Finding:
    packages: dict[str, str] = facts["packages"]
    found = next((f"{name} {packages[name]}" for name in NIXL_PACKAGES if name in packages), None)
    wanted = study.engine.nixl_version
    if found is None:
        return Finding(
            "NIXL",
            False,
            f"none of {', '.join(NIXL_PACKAGES)} is installed for {facts['executable']}",
            f"install one: {facts['executable']} -m pip install --no-deps nixl-cu13 numpy",
        )
    is_ok = wanted is None or found.split()[1] == wanted
    return Finding("NIXL", is_ok, found, f"engine.nixl_version asks for {wanted or 'any'}")


def _memory(facts: dict[str, Any], study: Study, design: Design) -> Finding:
    largest = max(design.launches, key=lambda launch: pool_bytes(study, launch))
    needed = pool_bytes(study, largest)
    available = _available_bytes(facts, study)
    fits = _largest_concurrency(study, largest, available)
    return Finding(
        f"{study.engine.memory} for the pools",
        needed <= available,
        f"{needed / 1e9:.1f} GB asked for, {available / 1e9:.1f} GB to be had",
        f"the largest workload.concurrency that fits is {fits}",
    )


def _available_bytes(facts: dict[str, Any], study: Study) -> float:
    if study.engine.memory == "DRAM":
        return float(_MEMORY_SHARE * (facts["memory_available_bytes"] or 0))
    free = [
        (float(gpu["memory.total"]) - float(gpu["memory.used"])) * 2**20
        for gpu in facts["gpus"] or []
        if int(gpu["index"]) in study.host.gpus
    ]
    # Each GPU holds one half of one pair, so the fullest one decides for all of them.
    pairs = 2 * study.engine.rank_pairs
    return _MEMORY_SHARE * min(free, default=0.0) * pairs


def _largest_concurrency(study: Study, launch: Launch, available: float) -> int:
    longest = max(cell.prompt_tokens for cell in launch.cells)
    per_pull = 2 * launch.arm.engine.rank_pairs * layout_of(study, launch, longest).n_pool_bytes
    return int(available // per_pull)


def _disk(results_dir: Path) -> Finding:
    place = next(p for p in (results_dir, *results_dir.resolve().parents) if p.exists())
    free = shutil.disk_usage(place).free
    return Finding(
        "disk for the results",
        free >= _DISK_BYTES,
        f"{free / 1e9:.1f} GB free at {place}",
        f"{_DISK_BYTES / 1e9:.1f} GB are needed",
    )
