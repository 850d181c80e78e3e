"""What an engine, a connection and a backend are; each implementation is one file of its room.

Declared here and not beside the implementations, since a study can only be composed and
checked with what they say of options and fields. The rooms lie above this one: they are
named, and looked through when a kind is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from kvroad.errors import UserError, nearest
from kvroad.evidence.counter import CounterKind
from kvroad.evidence.log import ProcessLog
from kvroad.plan import Claim, Plan
from kvroad.registry import Named, kinds_in

if TYPE_CHECKING:
    from kvroad.evidence.host_facts import HostSurvey
    from kvroad.study.design import Cell, Design, Launch
    from kvroad.study.fields import Engine, Host, Model, Study, Transport
    from kvroad.study.kv_layout import KvLayout

__all__ = [
    "BACKENDS",
    "CONNECTIONS",
    "COUNTERS",
    "ENGINES",
    "OK",
    "REFUSED",
    "WARNING",
    "Allocation",
    "Backend",
    "Connection",
    "EngineKind",
    "ExaminedHost",
    "HostFinding",
    "Registry",
]

K = TypeVar("K", bound=Named)


class Registry(Mapping[str, K], Generic[K]):
    """The kinds of one sort by name; looked for in ``package`` when first needed.

    ``setting`` is the key of the configuration that names one of them.
    """

    def __init__(self, setting: str, package: str, kind: type[K]) -> None:
        self._setting, self._package, self._kind = setting, package, kind

    @cached_property
    def _found(self) -> dict[str, K]:
        return kinds_in(self._package, self._kind)

    def __getitem__(self, name: str) -> K:
        """Return a kind; raises UserError, with the nearest name, for one that is not there."""
        try:
            return self._found[name]
        except KeyError:
            allowed = f"(allowed: {', '.join(self._found)})"
            hint = nearest(name, self._found)
            raise UserError(f"{self._setting}: {name!r} is not allowed{hint} {allowed}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True)
class Backend:
    """What moves the bytes under the connector: how it is told, and how its logs are read.

    Its witnesses are of `kvroad.proof.witnesses`, and apply to claims of this backend only.

    Parameters
    ----------
    prefix
        What the names of its environment variables begin with; a claim holds these.
    environment
        The variables that an arm sets unless the configuration does; ``transport`` is as
        the host has it.
    check
        Raises UserError where a transport asks for what the backend does not have; given
        are the key of the transport, the transport and the memory that the cache lies in.
    parse
        Reads the log of a process, given open and by its name.
    seen_road
        The road that the logs of the posting processes show, by rank; ``unknown``: none.
    devices
        The devices that those logs name on a claimed road.
    """

    name: str
    prefix: str
    environment: Callable[[Transport, Engine], dict[str, str]]
    check: Callable[[str, Transport, str], None]
    parse: Callable[[BinaryIO, str], ProcessLog]
    seen_road: Callable[[Sequence[ProcessLog], Claim], str]
    devices: Callable[[Sequence[ProcessLog], Claim], set[str]] = lambda logs, claim: set()

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return those variables of an environment that are the backend's."""
        return {name: v for name, v in environment.items() if name.startswith(self.prefix)}


BACKENDS = Registry("transport.backend", "kvroad.proof.backends", Backend)
COUNTERS = Registry("transport.counters", "kvroad.evidence.counters", CounterKind)


OK, WARNING, REFUSED = "ok", "warning", "refused"


@dataclass(frozen=True)
class HostFinding:
    """One line of the preflight table; ``needed`` says what would pass."""

    check: str
    status: str
    found: str
    needed: str = ""


@dataclass(frozen=True)
class ExaminedHost:
    """A host before anything is launched on it.

    ``ask`` runs a script with the Python that engines get there and returns the JSON object
    that it prints; it raises UserError where the script does not get as far.
    """

    host: Host
    facts: HostSurvey
    ask: Callable[[str], dict[str, object]]


@dataclass(frozen=True)
class EngineKind:
    """What moves KV caches in a launch, and how a study asks for it.

    Parameters
    ----------
    plan
        From a launch, its cells that are still to be measured and who asks, to the plan.
    examine
        Lines of the preflight table: what a host has of what the engine needs.
    layout
        From vLLM's default layout of one rank's pull to the one that the engine keeps; raises
        UserError where the sizes do not divide.
    check
        Raises UserError where options of the engine cannot be meant together.
    serves
        Whether it answers requests: ``engine.serving`` says how, TTFT is measured, and its
        pools are as large as it makes them.
    packages
        Distributions whose versions belong to its launches' facts, beyond those that the
        agent looks for in any.
    """

    name: str
    plan: Callable[[Study, Launch, list[Cell], str], Plan]
    examine: Callable[[Study, Design, ExaminedHost], list[HostFinding]]
    layout: Callable[[KvLayout, Engine, Model], KvLayout] = lambda layout, engine, model: layout
    check: Callable[[Engine], None] = lambda engine: None
    serves: bool = False
    packages: tuple[str, ...] = ()


ENGINES = Registry("engine.name", "kvroad.engines", EngineKind)


@dataclass(frozen=True)
class Allocation:
    """What a job has been given: its number, and the host with the nodes of it filled in."""

    job: str
    host: Host


@dataclass(frozen=True)
class Connection:
    """How the agent gets to a host.

    Parameters
    ----------
    open
        Returns a `kvroad.hosts.machine.Machine`, of a room above; raises UserError where none
        can be had.
    check
        Raises UserError for values of a host, or of one half of it, that do not go with the
        connection; given are the host and its key.
    allocate
        Finds the nodes of a host that exists only within the job that this process is in;
        None: the host is there before.
    is_by_hand
        Plans go out in a bundle, raw folders come back by ``kvroad ingest``.
    """

    name: str
    open: Callable[[Host], Any]
    check: Callable[[Host, str], None] = lambda host, where: None
    allocate: Callable[[Host], Allocation] | None = None
    is_by_hand: bool = False

    @property
    def is_allocated_in_job(self) -> bool:
        """Whether its hosts exist only within a job: no earlier can they be looked at."""
        return self.allocate is not None


CONNECTIONS = Registry("host.connection", "kvroad.hosts", Connection)
