"""A raw folder as records: all that the host agent left of one launch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvroad.errors import UserError
from kvroad.evidence.counters import phase_edges
from kvroad.evidence.nixl import Pull, PullLog, parse_pulls
from kvroad.evidence.ucx import parse_file
from kvroad.evidence.ucx_records import UcxLog
from kvroad.plan import Claim

__all__ = ["Evidence", "FarEnd", "read_raw"]


@dataclass(frozen=True)
class FarEnd:
    """The counters of the passive half's host, where the two halves run on two hosts."""

    claim: Claim
    edges: tuple[Mapping[str, Any], ...]
    file: str


@dataclass(frozen=True)
class Evidence:
    """The records of one raw folder.

    Parameters
    ----------
    logs
        File name to log: ``decode-<rank>.log``, ``prefill-<rank>.log``.
    planned
        Cell and phase to the number of pulls of all ranks.
    cell
        Limits pulls, phases and edges to one cell of the launch; None: all.
    n_cells
        How many cells the launch has.
    far
        The other end of the road; None where both are on one host.
    """

    claim: Claim
    logs: Mapping[str, UcxLog]
    pulls: tuple[PullLog, ...]
    edges: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    planned: Mapping[tuple[str, str], int]
    cell: str | None = None
    n_cells: int = 1
    far: FarEnd | None = None

    @property
    def roles(self) -> tuple[str, str]:
        """The role that posts the transfers, and the other one."""
        return ("decode", "prefill") if self.claim.operation == "read" else ("prefill", "decode")

    @property
    def initiators(self) -> list[str]:
        """The log files of the posting processes, by rank."""
        return [f"{self.roles[0]}-{rank}.log" for rank in range(self.claim.ranks)]

    def cell_pulls(self) -> Iterator[Pull]:
        """Yield the pulls of the cell."""
        for log in self.pulls:
            yield from (p for p in log.pulls if self.cell in (None, p.cell))

    def ended(self) -> Mapping[str, Any]:
        """Return how the agent ended this cell: its ``end`` event, empty where there is none.

        A cell that is whole is complete, however a later cell of its launch ended.
        """
        if self.cell is not None and self.n_cells > 1 and self._is_whole():
            return {"event": "end", "status": "complete"}
        return next((e for e in reversed(self.events) if e.get("event") == "end"), {})

    def _is_whole(self) -> bool:
        done = [(p.cell, p.phase) for p in self.cell_pulls() if p.is_done]
        pairs = phase_edges(self.edges, self.cell)
        return all(done.count(key) >= n and key in pairs for key, n in self.planned.items())


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
        with log.open("rb") as file:
            logs[log.name] = parse_file(file, log.name)
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
