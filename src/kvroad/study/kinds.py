"""What an engine, a connection and a backend are; each implementation is one file of its room.

Declared here and not beside the implementations, since a study can only be composed and
checked with what they say of options and fields. The rooms lie above this one: they are
named, and looked through when a kind is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

from kvroad.errors import UserError, nearest
from kvroad.evidence.log import ProcessLog
from kvroad.plan import Claim
from kvroad.registry import Named, kinds_in

if TYPE_CHECKING:
    from kvroad.study.fields import Engine, Transport

__all__ = ["BACKENDS", "Backend", "Registry"]

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
