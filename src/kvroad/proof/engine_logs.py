"""Engine logs of a deployment that kvroad did not start: which road they show, and why.

Only lines that may say something are looked at, and only what differs is kept, so that the
length of a log does not matter.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from pathlib import Path

from kvroad.errors import UserError
from kvroad.evidence.kv_transfer import ANSI, NEEDLE, TransferSum, parse_transfer_line
from kvroad.evidence.log import Complaint, Record
from kvroad.evidence.scan import ByteSource, LineScan
from kvroad.evidence.ucx import UCX_NEEDLES, UcxParser
from kvroad.evidence.ucx_records import EnvironmentLine, Lanes, ProtocolRow, ProtocolTable
from kvroad.proof.causes import CAUSES, Cause
from kvroad.proof.diagnose import Diagnosis, diagnosis_of, lost_devices

__all__ = ["LogReading", "RoadTable", "log_files", "read_log"]

# Distinct tables and complaints that are kept; a log has a handful.
_MOST_KEPT = 500
_DRAIN_LINES = 20_000
_LINE_BYTES = 1 << 20
_NEEDLES = {*UCX_NEEDLES, NEEDLE, *(cause.source or cause.needle for cause in CAUSES)}
_LOG_NAMES = ("*.log", "*.txt", "*.out", "*.err", "*.gz")


@dataclass
class RoadTable:
    """One distinct table of NIXL's transfers: the first of its kind, and how many there were."""

    table: ProtocolTable
    n_tables: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, table: ProtocolTable) -> None:
        """Count one more table with the same rows."""
        self.n_tables += 1
        for place, row in enumerate(table.rows):
            if row.count is not None:
                self.counts[place] = self.counts.get(place, 0) + row.count

    def row_for(self, n_bytes: int | None) -> ProtocolRow | None:
        """Return the row that tells the road: by use counts, else by the descriptor's size.

        None where rows of several sizes differ and the size is not known.
        """
        rows = self.table.rows
        used = [row for place, row in enumerate(rows) if self.counts.get(place)]
        if used:
            return max(used, key=lambda row: self.counts[rows.index(row)])
        if n_bytes is not None:
            return self.table.row_for(n_bytes)
        kinds = {(row.transports, row.is_emulation) for row in rows}
        return rows[-1] if len(kinds) == 1 else None


@dataclass
class LogReading:
    """What one log says.

    Parameters
    ----------
    tables
        Those of NIXL's transfers to another process, each distinct one once.
    n_other_tables
        UCX's tables of any other kind: its own messages, and operations within a process.
    environments
        UCX's environment lines, each distinct one once.
    lanes
        Lane lines, each distinct set of lanes of a scope and configuration once.
    """

    file: str
    n_lines: int = 0
    tables: list[RoadTable] = field(default_factory=list)
    n_other_tables: int = 0
    versions: list[str] = field(default_factory=list)
    environments: list[EnvironmentLine] = field(default_factory=list)
    lanes: list[Lanes] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    transfers: TransferSum = field(default_factory=TransferSum)
    causes: list[Diagnosis] = field(default_factory=list)

    @property
    def road_tables(self) -> list[RoadTable]:
        """The tables of the cache's own transfers.

        Reads before writes, since engines that pull also write small things; memory of GPUs
        before the host's, since that is where the cache is if it moves there at all.
        """
        for operation in ("read", "write"):
            for memory in ("cuda", "rocm", "ze", "host"):
                found = [
                    seen
                    for seen in self.tables
                    if seen.table.operation == operation
                    and seen.table.local_memory == seen.table.remote_memory == memory
                ]
                if found:
                    return found
        return []

    def road(self) -> tuple[str, ProtocolRow | None, RoadTable | None]:
        """Return the road's name, the row and the table that tell it.

        ``none`` where no transfer is shown, ``unknown`` where the row depends on a size that
        is not; several roads are joined by ``+``, the one that claims least first.
        """
        tables = self.road_tables
        if not tables:
            return "none", None, None
        size = self.transfers.descriptor_bytes
        known = [(row, table) for table in tables if (row := table.row_for(size)) is not None]
        if not known:
            return "unknown", None, tables[0]
        # An emulated transfer or one over TCP is what nobody asks for, so it comes first.
        known.sort(key=lambda pair: (not pair[0].is_emulation, pair[0].transports != ("tcp",)))
        names: dict[str, None] = {}
        for row, _ in known:
            names.update(dict.fromkeys(row.roads))
        return "+".join(names) or "unknown", *known[0]


def log_files(words: Iterable[str]) -> list[Path]:
    """Return the files that words name: files themselves, and the logs in folders.

    Raises
    ------
    UserError
        For a path that is not there, or a folder without a log.
    """
    found: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = sorted({file for name in _LOG_NAMES for file in path.glob(name)})
            if not inside:
                names = ", ".join(_LOG_NAMES)
                raise UserError(f"logs: {word} is a folder without a log ({names})")
            found += inside
        elif path.is_file() or path.is_fifo():
            found.append(path)
        else:
            raise UserError(f"logs: {word} is not there")
    return list(dict.fromkeys(found))


def read_log(path: Path, name: str | None = None) -> LogReading:
    """Read one log to its end.

    Raises
    ------
    UserError
        When it cannot be read.
    """
    try:
        with _open(path) as file:
            return _read(file, name or str(path))
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {_why(error)}") from error


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _read(log: ByteSource, file: str) -> LogReading:
    """Scan a log once, and take the parser's records every so many lines to bound memory."""
    reading, parser = LogReading(file), UcxParser(file)
    kinds: dict[tuple[object, ...], RoadTable] = {}
    found: dict[str, Diagnosis] = {}
    waiting = list(CAUSES)
    # One that holds another one finds nothing that the shorter does not.
    needles = [n for n in sorted(_NEEDLES) if not any(m in n for m in _NEEDLES - {n})]
    scan = LineScan(log, [needle.encode() for needle in needles], longest=_LINE_BYTES)
    for place, (number, data) in enumerate(scan, start=1):
        line = data.decode("utf-8", errors="replace")
        if NEEDLE not in line:
            parser.feed_at(number, line)
            _find_causes(Record(file, number, line), waiting, found)
        elif transfer := parse_transfer_line(line):
            reading.transfers.add(transfer)
        if place % _DRAIN_LINES == 0:
            _take(parser, reading, kinds)
    _take(parser, reading, kinds)
    for table in parser.log().tables:
        _take_table(table, reading, kinds)
    reading.n_lines = scan.n_lines
    reading.tables = list(kinds.values())
    reading.causes = _causes(reading, found)
    return reading


def _find_causes(record: Record, waiting: list[Cause], found: dict[str, Diagnosis]) -> None:
    """Move the causes that a line shows from those that wait to those that are found."""
    for cause in [cause for cause in waiting if cause.needle in record.text]:
        text = ANSI.sub("", record.text.rstrip())
        if match := cause.pattern.search(text):
            found[cause.name] = diagnosis_of(cause, match, replace(record, text=text))
            waiting.remove(cause)


def _take(
    parser: UcxParser, reading: LogReading, kinds: dict[tuple[object, ...], RoadTable]
) -> None:
    """Move the parser's records into the reading, each distinct line once."""
    part = parser.drain()
    for version in part.versions:
        if version.version not in reading.versions:
            reading.versions.append(version.version)
    known = [line.variables for line in reading.environments]
    for line in part.environments:
        if line.variables not in known and len(known) < _MOST_KEPT:
            known.append(line.variables)
            reading.environments.append(line)
    seen = {_lane_key(lanes) for lanes in reading.lanes}
    for lanes in part.lanes:
        if _lane_key(lanes) not in seen and len(seen) < _MOST_KEPT:
            seen.add(_lane_key(lanes))
            reading.lanes.append(lanes)
    reading.complaints += part.complaints[: _MOST_KEPT - len(reading.complaints)]
    for table in part.tables:
        _take_table(table, reading, kinds)


def _lane_key(lanes: Lanes) -> tuple[object, ...]:
    names = {name for lane in lanes.lanes.values() for name in lane}
    return lanes.scope, lanes.configuration, frozenset(names)


def _take_table(
    table: ProtocolTable, reading: LogReading, kinds: dict[tuple[object, ...], RoadTable]
) -> None:
    # NIXL posts lists: `(multi)`, or one call for a whole list of scattered pieces.
    is_list = "(multi)" in table.api or table.is_sgl
    if table.operation not in ("read", "write") or table.scope == "self" or not is_list:
        reading.n_other_tables += 1
        return
    rows = tuple((row.min_bytes, row.max_bytes, str(row)) for row in table.rows)
    kind = (table.operation, table.local_memory, table.remote_memory, table.scope, rows)
    if kind in kinds or len(kinds) < _MOST_KEPT:
        kinds.setdefault(kind, RoadTable(table)).add(table)


def _causes(reading: LogReading, found: dict[str, Diagnosis]) -> list[Diagnosis]:
    """Return the causes in the order of the table, the possible ones last.

    libibverbs complains of every driver that it lacks: only the asked device's counts.
    """
    lost = lost_devices(reading.complaints)
    found.pop("driver missing", None)
    causes = [*lost, *(found[cause.name] for cause in CAUSES if cause.name in found)]
    return sorted(causes, key=lambda cause: cause.is_possible)
