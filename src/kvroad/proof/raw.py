"""A raw folder as records: all that the host agent left of one launch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from kvroad.errors import UserError
from kvroad.evidence.counter import Edge, phase_edges
from kvroad.evidence.events import AgentEvent
from kvroad.evidence.kv_transfer import NEEDLE
from kvroad.evidence.log import ProcessLog
from kvroad.evidence.nixl import Pull, PullLog, parse_pulls
from kvroad.evidence.scan import LineScan
from kvroad.evidence.serving import SERVED_FILES, ServedPhase, folder_of, served_phase
from kvroad.evidence.vllm import KvLine, parse_kv_lines
from kvroad.plan import Claim, Phase, PlannedCell, claim_and_cells
from kvroad.study.kinds import BACKENDS

__all__ = ["Evidence", "FarEnd", "read_raw"]


@dataclass(frozen=True)
class FarEnd:
    """The counters of the passive half's host, where the two halves run on two hosts."""

    claim: Claim
    edges: tuple[Edge, ...]
    file: str


@dataclass(frozen=True)
class Evidence:
    """The records of one raw folder.

    Parameters
    ----------
    logs
        File name to log, as the claim's backend reads it: ``decode-<rank>.log``,
        ``prefill-<rank>.log``.
    planned
        Cell and phase to the number of pulls of all ranks.
    cell
        Limits pulls, phases and edges to one cell of the launch; None: all.
    n_cells
        How many cells the launch has.
    far
        The other end of the road; None where both are on one host.
    served
        The phases of serving engines, in place of pulls; of all cells of the launch.
    kv_lines
        What decode's log says of transfers, over the whole launch.
    texts
        Process to the options (see `plan.LogLine`) whose text its log holds.
    """

    claim: Claim
    logs: Mapping[str, ProcessLog]
    pulls: tuple[PullLog, ...]
    edges: tuple[Edge, ...]
    events: tuple[AgentEvent, ...]
    planned: Mapping[tuple[str, str], int]
    cell: str | None = None
    n_cells: int = 1
    far: FarEnd | None = None
    served: tuple[ServedPhase, ...] = ()
    kv_lines: tuple[KvLine, ...] = ()
    texts: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, str]:
        """The role that posts the transfers, and the other one."""
        return ("decode", "prefill") if self.claim.operation == "read" else ("prefill", "decode")

    @property
    def initiators(self) -> list[str]:
        """The log files of the posting processes, by rank."""
        return [f"{self.roles[0]}-{rank}.log" for rank in range(self.claim.ranks)]

    @property
    def posting_logs(self) -> list[ProcessLog]:
        """The logs of the posting processes that are there, by rank."""
        return [self.logs[file] for file in self.initiators if file in self.logs]

    def seen_road(self) -> str:
        """Return the road that the logs show, ``unknown`` where they show none."""
        return BACKENDS[self.claim.backend].seen_road(self.posting_logs, self.claim)

    @cached_property
    def cell_pulls(self) -> tuple[Pull, ...]:
        """The pulls of the cell."""
        pulls = (pull for log in self.pulls for pull in log.pulls)
        return tuple(pull for pull in pulls if self.cell in (None, pull.cell))

    def cell_served(self) -> list[ServedPhase]:
        """Return the served phases of the cell."""
        return [phase for phase in self.served if self.cell in (None, phase.cell)]

    @cached_property
    def payload(self) -> Mapping[tuple[str, str], int]:
        """The bytes that each phase of the cell moved, as NIXL counted them."""
        payload: dict[tuple[str, str], int] = {}
        for pull in self.cell_pulls:
            key = (pull.cell, pull.phase)
            payload[key] = payload.get(key, 0) + (pull.bytes_moved or 0)
        for phase in self.cell_served():
            if phase.transfers is not None:
                payload[phase.cell, phase.phase] = int(phase.transfers.n_bytes)
        return payload

    def ended(self) -> AgentEvent:
        """Return how the agent ended this cell: its ``end`` event, empty where there is none.

        A cell that is whole is complete, however a later cell of its launch ended.
        """
        if self.cell is not None and self.n_cells > 1 and self._is_whole():
            return {"event": "end", "status": "complete"}
        return next((e for e in reversed(self.events) if e.get("event") == "end"), AgentEvent())

    def _is_whole(self) -> bool:
        if self.claim.serving is not None:
            whole = {(p.cell, p.phase) for p in self.cell_served() if p.transfers is not None}
            return bool(self.planned) and whole >= set(self.planned)
        done = [(p.cell, p.phase) for p in self.cell_pulls if p.is_done]
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
        claim, cells = claim_and_cells(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not the plan of a raw folder: {error}") from error
    backend, logs, pulls = BACKENDS[claim.backend], {}, []
    for log in sorted(raw_dir.glob("*.log")):
        with log.open("rb") as file:
            logs[log.name] = backend.parse(file, log.name)
    for rows in sorted(raw_dir.glob("pulls-*.jsonl")):
        with rows.open(encoding="utf-8", errors="replace") as lines:
            pulls.append(parse_pulls(lines, rows.name))
    return Evidence(
        claim,
        logs,
        tuple(pulls),
        _edges(raw_dir / "counters.jsonl"),
        # Whoever reads an event looks for its keys one by one.
        cast("tuple[AgentEvent, ...]", _json_rows(raw_dir / "events.jsonl")),
        {(c.cell, p.name): p.pulls for c in cells for p in c.phases if cell in (None, c.cell)},
        cell,
        len(cells),
        _far_end(raw_dir, claim),
        _served(raw_dir, cells) if claim.serving is not None else (),
        _kv_lines(raw_dir / "decode-0.log") if claim.serving is not None else (),
        _texts(raw_dir, claim),
    )


def _served(raw_dir: Path, cells: Iterable[PlannedCell]) -> tuple[ServedPhase, ...]:
    """Read what serving engines and the load on them left of each phase that was begun."""
    pairs = ((cell, phase) for cell in cells for phase in cell.phases)
    phases = (_served_phase(raw_dir, cell.cell, phase) for cell, phase in pairs)
    return tuple(phase for phase in phases if phase is not None)


def _texts(raw_dir: Path, claim: Claim) -> dict[str, frozenset[str]]:
    """Return which texts of the claim's options are in the log of each process."""
    wanted: dict[str, set[str]] = {}
    for line in claim.serving.log_lines if claim.serving is not None else ():
        wanted.setdefault(line.process, set()).add(line.text)
    return {p: frozenset(_found(raw_dir / f"{p}.log", texts)) for p, texts in wanted.items()}


def _kv_lines(log: Path) -> tuple[KvLine, ...]:
    """Return what decode says of its transfers, without holding its log."""
    found: list[KvLine] = []
    for number, line in _lines_with(log, [NEEDLE]):
        found += parse_kv_lines([line], log.name, number)
    return tuple(found)


def _found(log: Path, texts: Iterable[str]) -> set[str]:
    """Return those of the texts that are in a log, which is read until all are found."""
    missing, found = set(texts), set[str]()
    for _, line in _lines_with(log, sorted(missing)):
        found |= {text for text in missing if text in line}
        missing -= found
        if not missing:
            break
    return found


def _lines_with(log: Path, needles: Iterable[str]) -> Iterator[tuple[int, str]]:
    if not log.is_file():
        return
    with log.open("rb") as file:
        for number, line in LineScan(file, [needle.encode() for needle in needles]):
            yield number, line.decode("utf-8", errors="replace")


def _served_phase(raw_dir: Path, cell: str, phase: Phase) -> ServedPhase | None:
    folder = raw_dir / folder_of(cell, phase.name)
    if not folder.is_dir():
        return None
    files = {name: _text(folder / name) for name in SERVED_FILES if (folder / name).is_file()}
    return served_phase(cell, phase.name, phase.command.line, files)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _far_end(raw_dir: Path, claim: Claim) -> FarEnd | None:
    """Read what the passive half's host counted, where it is another one."""
    if claim.side is None:
        return None
    side = "prefill" if claim.side == "decode" else "decode"
    far_claim, _ = claim_and_cells((raw_dir / f"{side}.plan.json").read_text(encoding="utf-8"))
    file = f"{side}.counters.jsonl"
    return FarEnd(far_claim, _edges(raw_dir / file), file)


def _edges(path: Path) -> tuple[Edge, ...]:
    return tuple(Edge.from_row(row) for row in _json_rows(path))


def _json_rows(path: Path) -> tuple[dict[str, object], ...]:
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
