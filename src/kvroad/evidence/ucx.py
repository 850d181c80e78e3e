"""UCX's own log lines as records: version, environment, lanes, complaints, protocol tables.

The table layouts follow UCX's ``proto_debug.c``: up to 1.21 one title row with two cells,
from 1.22 on two title rows and a header row; with ``UCX_PROTO_INFO=used`` a use count
stands before the range (old) or in a column of its own (new).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from kvroad.evidence.log import Complaint, Record
from kvroad.evidence.scan import LineScan
from kvroad.evidence.ucx_records import (
    EnvironmentLine,
    Lanes,
    ProtocolRow,
    ProtocolTable,
    Share,
    UcxLog,
    Version,
)

__all__ = ["UCX_NEEDLES", "UcxParser", "parse_file", "parse_lines", "parse_range", "parse_shares"]

# UCX_LOG_BUFFER: a message holds at most this many characters (measured with UCX 1.23.0).
MESSAGE_CHARACTERS = 1023
# UCP_PROTO_CONFIG_STR_MAX less its closing zero.
CONFIG_CHARACTERS = 127
MAX_COMPLAINTS = 200
_UNITS = ("", "K", "M", "G", "T", "P", "E")
LAST_LINES = 5

# What any line of UCX, NIXL or libibverbs has, and few others have.
_OF_UCX = ("] [", ".c:")
_OF_OTHERS = ("NIXL_ERR", ".cpp:", ".h:", "libibverbs: ")
UCX_NEEDLES = (*_OF_UCX, *_OF_OTHERS)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"\[\d+\.\d+\] \[([^\[\]]+?):(\d+) *:(\d+) *\] ?(.*)")
_FATAL = re.compile(r"\[([^\[\]\s]+?):(\d+) *:\d+:(\d+) *\] +(\w+\.\w+:\d+) +(.*)")
_LEVELLED = re.compile(r"\s*(\S+:\d+)\s+UCX\s+([A-Z]+)\s+(.*)")
_NIXL_LOG = re.compile(r"E\d{4} [\d:.]+ +(\d+) ([\w.-]+:\d+)\] (.*)")
_VERSION = re.compile(r"Version (\S+) \(loaded from ([^,)]+)")
_ENVIRONMENT = re.compile(r"UCX_\* env variables?: ?(.*)")
_VARIABLE = re.compile(r"(?:^|(?<= ))(UCX_\w+)=")
_CONFIGURATION = re.compile(r"(?:(.*?) +)?(self|intra-node|inter-node) cfg#(\d+)\b *(.*)")
_LANE = re.compile(r"(\w+)\(([^)]*)\)")
_MEMORY_OPERATION = re.compile(
    r"remote memory (read|write) by (\S+) (?:into|from) "
    r"(?:(iov|sgl|generic|strided)(?:\[\d+\])? )?([\w-]+)(?: memory|/(\S+))?"
    r"(?: (?:from|to) ([\w-]+)(?:/(\S+))?)?"
)
_RANGE = re.compile(r"(\d+)([KMGTPE]?)(?:\.\.(?:(inf)|(\d+)([KMGTPE]?)))?")
_SHARE = re.compile(r"(?:(\d+)% on ?)?(\S*)")


def parse_file(file: BinaryIO, name: str) -> UcxLog:
    """Read a whole log like `parse_lines`, in blocks and without looking at every line."""
    parser = UcxParser(name)
    scan = LineScan(file, [needle.encode() for needle in UCX_NEEDLES], LAST_LINES)
    for number, line in scan:
        parser.feed_at(number, line.decode("utf-8", errors="replace"))
    last = [line.decode("utf-8", errors="replace") for line in scan.last]
    parser.ended(scan.n_lines, last)
    return parser.log()


def parse_lines(lines: Iterable[str], file: str) -> UcxLog:
    """Read a whole log; other programs' lines between UCX's are passed over."""
    parser = UcxParser(file)
    for line in lines:
        parser.feed(line)
    return parser.log()


def parse_range(text: str) -> tuple[int, int | None]:
    """Read ``0..8184``, ``64K..inf`` or ``2M`` as bytes; None is unbounded.

    Raises
    ------
    ValueError
        When the text is no size range.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a size range: {text!r}")
    low, low_unit, unbounded, high, high_unit = match.groups()
    least = _bytes(low, low_unit)
    if unbounded:
        return least, None
    return least, least if high is None else _bytes(high, high_unit)


def _bytes(digits: str, unit: str) -> int:
    return int(digits) << (10 * _UNITS.index(unit))


def parse_shares(config: str) -> tuple[Share, ...]:
    """Read a table's config cell.

    ``tcp/lo``; ``rc_mlx5/mlx5_0:1/path0``; ``rc_mlx5/mlx5_0:1 50% on path0 and 50% on
    path1``; ``30% on A, 40% on B and 30% on C``. UCX cuts the cell at 127 characters: a
    last part without a whole transport name is left out. An unreadable cell gives ().
    """
    device = re.match(r"(\S+/\S+) (?=\d+% on)", config)
    base = device[1] if device else ""
    pieces = re.split(r", and |, | and ", config[device.end() :] if device else config)
    if len(config) >= CONFIG_CHARACTERS and not base and "/" not in pieces[-1]:
        pieces.pop()
    shares = [_share(piece, base) for piece in pieces]
    return () if None in shares else tuple(s for s in shares if s is not None)


def _share(piece: str, base: str) -> Share | None:
    match = _SHARE.fullmatch(piece.strip())
    if match is None:
        return None
    percent, target = match.groups()
    resource = base or target
    transport, _, device = resource.partition("/")
    path = target if base and target else None
    head, _, tail = device.rpartition("/")
    if head and re.fullmatch(r"path\d+", tail):
        device, path = head, path or tail
    if not transport or not device:
        return None
    return Share(transport, device, path, int(percent) / 100 if percent else 1.0)


@dataclass
class _OpenTable:
    """A table that is still being printed by one thread."""

    start: int
    text: str = ""
    context: str | None = None
    scope: str = ""
    configuration: int = 0
    title: str = ""
    is_old: bool = False
    stage: str = "title"
    columns: list[str] = field(default_factory=list)
    rows: list[ProtocolRow] = field(default_factory=list)
    is_readable: bool = True


class UcxParser:
    """Incremental parser of one log file; memory grows with its records only."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._n_lines = 0
        self._n_complaints = 0
        self._versions: list[Version] = []
        self._environments: list[EnvironmentLine] = []
        self._lanes: list[Lanes] = []
        self._complaints: list[Complaint] = []
        self._tables: list[ProtocolTable] = []
        self._open: dict[tuple[str, int, int], _OpenTable] = {}
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def feed(self, line: str) -> None:
        """Take the next line of the file, with or without its line end."""
        self._last.append(line)
        self.feed_at(self._n_lines + 1, line)

    def feed_at(self, number: int, line: str) -> None:
        """Take a line by its number; those passed over since the last one say nothing."""
        self._n_lines = number
        if any(needle in line for needle in _OF_UCX):
            self._ucx_line(_ANSI.sub("", line.rstrip()) if "\x1b" in line else line.rstrip())
        elif any(needle in line for needle in _OF_OTHERS):
            self._other_line(_ANSI.sub("", line.rstrip()))

    def ended(self, n_lines: int, last: Iterable[str]) -> None:
        """Take how many lines the file has and which are its last, where most were passed over."""
        self._n_lines = n_lines
        self._last.extend(last)

    def log(self) -> UcxLog:
        """Return what was read so far; a table still open is given as not complete."""
        unfinished = [
            self._table(key, table, is_complete=False)
            for key, table in self._open.items()
            if table.context is not None and table.stage == "rows"
        ]
        last = enumerate(self._last, start=self._n_lines - len(self._last) + 1)
        return replace(
            self._records(),
            tables=(*self._tables, *unfinished),
            last_lines=tuple(Record(self.file, n, _ANSI.sub("", t).rstrip()) for n, t in last),
        )

    def drain(self) -> UcxLog:
        """Return the records since the last call and forget them; tables still open stay open.

        So that a log of any length can be read in bounded memory.
        """
        part = self._records()
        for records in (self._versions, self._environments, self._lanes, self._tables):
            records.clear()
        self._complaints.clear()
        return part

    def _records(self) -> UcxLog:
        return UcxLog(
            self.file,
            versions=tuple(self._versions),
            environments=tuple(self._environments),
            lanes=tuple(self._lanes),
            complaints=tuple(self._complaints),
            tables=tuple(self._tables),
            n_lines=self._n_lines,
            n_complaints=self._n_complaints,
        )

    def _ucx_line(self, line: str) -> None:
        """Sort a line by its level; those of tables go by the first character of their text."""
        match = _PREFIX.search(line)
        if match is None:
            fatal = _FATAL.search(line)
            if fatal:
                _, pid, _, source, text = fatal.groups()
                self._complain("UCX", "FATAL", int(pid), f"{source} {text}", line)
            return
        host, pid, tid, message = match.groups()
        levelled = _LEVELLED.match(message)
        level, text = ("", message.strip()) if levelled is None else levelled.group(2, 3)
        if text[:1] in ("|", "+"):
            self._table_line((host, int(pid), int(tid)), text, line)
        elif level in ("WARN", "ERROR", "FATAL"):
            self._complain("UCX", level, int(pid), text, line)
        elif level == "INFO":
            self._information(int(pid), int(tid), text, line)

    def _information(self, pid: int, tid: int, text: str, line: str) -> None:
        here = (self.file, self._n_lines, line)
        if version := _VERSION.match(text):
            self._versions.append(Version(*here, pid, version[1], version[2]))
        elif environment := _ENVIRONMENT.match(text):
            is_cut = len(text) >= MESSAGE_CHARACTERS - 1
            self._environments.append(
                EnvironmentLine(*here, pid, _variables(environment[1]), is_cut)
            )
        elif configuration := _CONFIGURATION.fullmatch(text):
            context, scope, index, rest = configuration.groups()
            lanes = {kind: tuple(names.split()) for kind, names in _LANE.findall(rest)}
            self._lanes.append(Lanes(*here, pid, tid, context or "", scope, int(index), lanes))

    def _other_line(self, line: str) -> None:
        match = _NIXL_LOG.search(line)
        if match:
            self._complain("NIXL", "ERROR", int(match[1]), f"{match[2]} {match[3]}", line)
        elif "NIXL_ERR" in line:
            self._complain("NIXL", "ERROR", None, line.strip(), line)
        elif "libibverbs: " in line:
            self._complain("libibverbs", "WARN", None, line.partition("libibverbs: ")[2], line)

    def _complain(self, speaker: str, level: str, pid: int | None, text: str, line: str) -> None:
        self._n_complaints += 1
        if self._n_complaints <= MAX_COMPLAINTS:
            here = (self.file, self._n_lines, line)
            self._complaints.append(Complaint(*here, speaker, level, pid, text))

    def _table_line(self, key: tuple[str, int, int], text: str, line: str) -> None:
        table = self._open.get(key)
        if text[0] == "+":
            self._border(key, table)
        elif table is not None and table.stage == "title":
            self._title(table, text, line)
        elif table is not None and table.stage == "header":
            table.columns = [cell.strip() for cell in text.strip("|").split("|")]
        elif table is not None:
            self._row(table, text, line)

    def _border(self, key: tuple[str, int, int], table: _OpenTable | None) -> None:
        if table is None or table.context is None:
            self._open[key] = _OpenTable(self._n_lines)
        elif table.stage == "title":
            table.stage = "rows" if table.is_old else "header"
        elif table.stage == "header":
            table.stage = "rows"
        else:
            self._tables.append(self._table(key, table, is_complete=table.is_readable))
            del self._open[key]

    def _title(self, table: _OpenTable, text: str, line: str) -> None:
        inner = text.strip("|").strip()
        match = _CONFIGURATION.fullmatch(inner)
        if match is None:
            table.title, table.text, table.start = inner, line, self._n_lines
            return
        table.context, table.scope = match[1] or "", match[2]
        table.configuration = int(match[3])
        table.text, table.start = line, self._n_lines
        if match[4].startswith("|"):
            table.is_old, table.title = True, match[4][1:].strip()

    def _row(self, table: _OpenTable, text: str, line: str) -> None:
        """Take a row in either layout; one that cannot be read makes its table not complete."""
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if table.is_old:
            cells = [*([""] * (2 - len(cells[0].split()))), *cells[0].split(), *cells[1:]]
        elif "Count" not in table.columns:
            cells = ["", *cells]
        try:
            count, size, description, config = cells
            low, high = parse_range(size)
            uses = int(count) if count else None
        except ValueError:
            table.is_readable = False
            return
        is_estimate = description.startswith("(?)")
        description = description.removeprefix("(?)").strip()
        shares = parse_shares(config)
        row = (uses, low, high, description, is_estimate, config, shares)
        table.rows.append(ProtocolRow(self.file, self._n_lines, line, *row))

    def _table(
        self, key: tuple[str, int, int], table: _OpenTable, is_complete: bool
    ) -> ProtocolTable:
        """Close a table: what its title says of operation and memory, and its rows."""
        title = _MEMORY_OPERATION.match(table.title)
        is_message = table.title.startswith("active message")
        operation, api, data_class, *memories = (
            title.groups()
            if title
            else ("active_message" if is_message else "other", "", None, None, None, None, None)
        )
        local_memory, local_device, remote_memory, remote_device = memories
        host, pid, tid = key
        return ProtocolTable(
            self.file,
            table.start,
            table.text,
            host=host,
            pid=pid,
            tid=tid,
            context=table.context or "",
            scope=table.scope,
            configuration=table.configuration,
            title=table.title,
            operation=operation,
            api=api,
            local_memory=local_memory,
            local_device=local_device,
            remote_memory=remote_memory,
            remote_device=remote_device,
            is_sgl=data_class == "sgl" or any(r.description == "sgl" for r in table.rows),
            is_complete=is_complete,
            rows=tuple(table.rows),
        )


def _variables(text: str) -> dict[str, str]:
    starts = list(_VARIABLE.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {m[1]: text[m.end() : end].rstrip() for m, end in zip(starts, ends, strict=True)}
