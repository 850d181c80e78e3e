"""What an engine, a connection and a backend are; each implementation is one file of its room.

Declared here and not beside the implementations, since a study can only be composed and
checked with what they say of options and fields. The rooms lie above this one: they are
named, and looked through when a kind is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

from kvroad.errors import UserError, nearest
from kvroad.registry import Named, kinds_in

__all__ = ["Registry"]

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
