"""Records of UCX's log lines, as `kvroad.evidence.ucx` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvroad.evidence.log import ProcessLog, Record

__all__ = [
    "EnvironmentLine",
    "Lanes",
    "ProtocolRow",
    "ProtocolTable",
    "Share",
    "UcxLog",
    "Version",
]


@dataclass(frozen=True)
class Version(Record):
    """The UCX that a process loaded."""

    pid: int
    version: str
    library: str


@dataclass(frozen=True)
class EnvironmentLine(Record):
    """The ``UCX_*`` variables that UCX says it takes from the environment.

    UCX prints ``A=B C=D`` without quotes: a value that holds `` UCX_X=`` cannot be told
    from a variable, and blanks at a value's end are lost. ``is_cut`` says that the
    message filled UCX's buffer, so that the last variables may be missing.
    """

    pid: int
    variables: dict[str, str]
    is_cut: bool


@dataclass(frozen=True)
class Lanes(Record):
    """A lane line: kind (``am``, ``rma``, ``rma_am`` …) to resources. Not the road itself."""

    pid: int
    tid: int
    context: str
    scope: str
    configuration: int
    lanes: dict[str, tuple[str, ...]]

    def has(self, name: str) -> bool:
        """Return whether a lane of any kind has this resource, such as ``cuda_ipc/cuda``."""
        return any(name in names for names in self.lanes.values())


@dataclass(frozen=True)
class Share:
    """A part of a row's traffic: transport, device, path, and its share (0 to 1)."""

    transport: str
    device: str
    path: str | None
    share: float


@dataclass(frozen=True)
class ProtocolRow(Record):
    """One size range of a table; ``max_bytes`` None is unbounded, ``count`` None not printed."""

    count: int | None
    min_bytes: int
    max_bytes: int | None
    description: str
    is_estimate: bool
    config: str
    shares: tuple[Share, ...]

    def holds(self, n_bytes: int) -> bool:
        """Return whether a message of this size takes this row."""
        return self.min_bytes <= n_bytes and (self.max_bytes is None or n_bytes <= self.max_bytes)

    @property
    def is_emulation(self) -> bool:
        """Whether remote memory is reached by messages that the peer's CPU answers."""
        return "software emulation" in self.description

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports of the shares, each once, in order."""
        return tuple(dict.fromkeys(s.transport for s in self.shares))

    @property
    def is_detour(self) -> bool:
        """Whether a device's road is emulated; over TCP that is how a remote read is done."""
        return self.is_emulation and self.transports != ("tcp",)

    @property
    def roads(self) -> tuple[str, ...]:
        """The transports, marked where they only emulate."""
        suffix = " (software emulation)" if self.is_detour else ""
        return tuple(transport + suffix for transport in self.transports)

    def __str__(self) -> str:
        """``zero-copy over rc_mlx5/mlx5_0:1``."""
        over = dict.fromkeys(f"{s.transport}/{s.device}" for s in self.shares)
        return f"{self.description} over {' + '.join(over) or self.config or 'nothing'}"


@dataclass(frozen=True)
class ProtocolTable(Record):
    """One protocol table: of one worker's endpoint configuration and one kind of operation.

    ``is_complete`` is False where the log ends within the table or a row is unreadable.
    ``scope`` is ``self``, ``intra-node`` or ``inter-node``; ``operation`` is ``read``,
    ``write``, ``active_message`` or ``other``; ``text`` is the title's line.
    """

    host: str
    pid: int
    tid: int
    context: str
    scope: str
    configuration: int
    title: str
    operation: str
    api: str
    local_memory: str | None
    local_device: str | None
    remote_memory: str | None
    remote_device: str | None
    is_sgl: bool
    is_complete: bool
    rows: tuple[ProtocolRow, ...]

    @property
    def has_counts(self) -> bool:
        """Whether the rows carry use counts (``UCX_PROTO_INFO=used``)."""
        return any(row.count is not None for row in self.rows)

    def row_for(self, n_bytes: int) -> ProtocolRow | None:
        """Return the row whose size range holds a message of this size."""
        return next((row for row in self.rows if row.holds(n_bytes)), None)


@dataclass(frozen=True)
class UcxLog(ProcessLog):
    """What one log file says about UCX, in the order of its lines."""

    versions: tuple[Version, ...] = ()
    environments: tuple[EnvironmentLine, ...] = ()
    lanes: tuple[Lanes, ...] = ()
    tables: tuple[ProtocolTable, ...] = ()

    def records(self) -> Iterator[Record]:
        """Yield every record, kind by kind."""
        yield from self.versions
        yield from self.environments
        yield from self.lanes
        yield from self.complaints
        yield from self.tables
