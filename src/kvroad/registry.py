"""Kinds that are declared one to a file, found by looking through the package that holds them.

Standard library only: the kinds of byte counters travel to the host with the agent.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, TypeVar

__all__ = ["Named", "kinds_in"]


class Named(Protocol):
    """What a kind needs to be found by."""

    @property
    def name(self) -> str:
        """Its name in configuration and records."""
        ...


K = TypeVar("K", bound=Named)


def kinds_in(package: str, kind: type[K]) -> dict[str, K]:
    """Return the instances of ``kind`` that modules of a package hold at their top, by name.

    A tuple at the top is looked into: kinds that are made from others have no names there.
    In the order of the module names, and within one as they are declared.

    Raises
    ------
    ValueError
        When two of them have one name.
    """
    found: dict[str, K] = {}
    places = pkgutil.iter_modules(importlib.import_module(package).__path__)
    for name in sorted({place.name for place in places}):
        module = importlib.import_module(f"{package}.{name}")
        for held in vars(module).values():
            for value in held if isinstance(held, tuple) else (held,):
                if isinstance(value, kind) and found.setdefault(value.name, value) is not value:
                    raise ValueError(f"{module.__name__}: a second {kind.__name__} {value.name!r}")
    return found
