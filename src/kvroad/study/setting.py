"""How a field of the study is declared, beside its type and default: help and identity."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

__all__ = [
    "Identity",
    "Setting",
    "cell",
    "cell_if_changed",
    "default_of",
    "free",
    "identity_of",
    "inner",
    "plain_of",
    "section",
    "section_from",
    "settings_of",
]

T = TypeVar("T")


class Identity(Enum):
    """Whether a field is part of what a cell's name is a hash of."""

    YES = "yes"
    IF_CHANGED = "where it differs from its default"
    ELSEWHERE = "in another part of the identity"
    NO = "no"


@dataclass(frozen=True)
class Setting:
    """What a field says of itself beside its type and default.

    ``reaches``: it says how a host is reached; no folder of results is named for it.
    """

    help: str
    identity: Identity
    reaches: bool = False


# Type checkers read default and default_factory by these names (PEP 681, field specifiers).
def cell(text: str, *, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """Declare a field of a cell's identity: another value asks for other cells."""
    return _field(Setting(text, Identity.YES), default, default_factory)


def cell_if_changed(text: str, *, default: Any) -> Any:
    """Declare one added after cells were measured: with its default they keep their names."""
    return _field(Setting(text, Identity.IF_CHANGED), default, MISSING)


def inner(text: str, *, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """Declare one that the identity holds as a section of its own or in the environment."""
    return _field(Setting(text, Identity.ELSEWHERE), default, default_factory)


def free(
    text: str, *, default: Any = MISSING, default_factory: Any = MISSING, reaches: bool = False
) -> Any:
    """Declare a field that never measures anything again."""
    return _field(Setting(text, Identity.NO, reaches), default, default_factory)


def _field(setting: Setting, default: Any, default_factory: Any) -> Any:
    metadata = {"setting": setting}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(cell, cell_if_changed, free, inner),
)
def section(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are declared; pydantic refuses other keys."""
    # Instances are checked again too, since dataclasses.replace() checks nothing.
    cls.__pydantic_config__ = {  # type: ignore[attr-defined]
        "extra": "forbid",
        "revalidate_instances": "always",
    }
    return dataclass(frozen=True)(cls)


@cache
def settings_of(owner: type) -> dict[str, Setting]:
    """Return what each field of a section says; raises KeyError where one says nothing."""
    return {item.name: item.metadata["setting"] for item in fields(owner)}


def default_of(item: Field[Any]) -> Any:
    """Return the default of a field; MISSING where it has none."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def plain_of(value: Any) -> Any:
    """Return a section, and all below it, as plain values.

    A field that was added later is left out where it has its default: a study that does not
    use it is written as before there was one.
    """
    if isinstance(value, dict):
        return {key: plain_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_of(item) for item in value]
    owner: type = type(value)
    if not is_dataclass(owner):
        return value
    settings = settings_of(owner)
    return {
        item.name: plain_of(getattr(value, item.name))
        for item in fields(owner)
        if settings[item.name].identity is not Identity.IF_CHANGED
        or getattr(value, item.name) != default_of(item)
    }


def section_from(owner: type[T], plain: Mapping[str, object]) -> T:
    """Return the section that :func:`plain_of` made plain values of; nothing is checked again.

    Raises
    ------
    KeyError, TypeError
        For a key that is none of its fields, and where one is missing.
    """
    hints = get_type_hints(owner, include_extras=True)
    return owner(**{key: _from_plain(hints[key], value) for key, value in plain.items()})


def _from_plain(hint: Any, value: Any) -> Any:
    inside = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated or origin in (Union, types.UnionType):
            return None if value is None else _from_plain(inside[0], value)
        case origin if origin is dict:
            return {key: _from_plain(inside[1], item) for key, item in value.items()}
        case origin if origin is list:
            return [_from_plain(inside[0], item) for item in value]
    is_section = isinstance(hint, type) and is_dataclass(hint)
    return section_from(hint, value) if is_section else value


def identity_of(value: Any, owner: type | None = None) -> dict[str, object]:
    """Return the fields of a section that belong to a cell's identity, as plain values.

    Parameters
    ----------
    owner
        The section that declares them, where it is another than the value's own.
    """
    owner = owner or type(value)
    plain, settings = asdict(value), settings_of(owner)
    kept = {}
    for item in fields(owner):
        part = settings[item.name].identity
        is_changed = getattr(value, item.name) != default_of(item)
        if part is Identity.YES or (part is Identity.IF_CHANGED and is_changed):
            kept[item.name] = plain[item.name]
    return kept
