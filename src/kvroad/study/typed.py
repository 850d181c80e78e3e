"""Plain data as declared types, and what is wrong with it in one line. The one door to pydantic."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kvroad.errors import UserError, nearest
from kvroad.study.allowed import Changes, Refused
from kvroad.study.fields import Study

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

__all__ = ["FIELD_OF_GROUP", "bare", "config_keys", "shown", "type_at", "typed", "unknown"]

T = TypeVar("T")
# Fields of a study whose configuration group, and so their key, has another name.
FIELD_OF_GROUP = {"transport": "transports", "variant": "variants"}
_GROUP_OF_FIELD = {field: group for group, field in FIELD_OF_GROUP.items()}
_BOUNDS = {
    "greater_than_equal": "small; allowed is {ge:g} or more",
    "greater_than": "small; allowed is above {gt:g}",
    "less_than_equal": "large; allowed is {le:g} or less",
    "less_than": "large; allowed is below {lt:g}",
}


def typed(owner: type[T], data: object, where: str = "") -> T:
    """Return plain data, or a value of the type, as a value of the type with all checks passed.

    Parameters
    ----------
    where
        The key of the data, for the message.

    Raises
    ------
    UserError
        In one line: key, value, what is allowed, the nearest spelling.
    """
    from pydantic import ValidationError

    try:
        # mypy does not take every type for hashable.
        value: T = _adapter(owner).validate_python(data)  # type: ignore[arg-type]
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise UserError(_line(owner, details, where.split(".") if where else [])) from None
    return value


@cache
def _adapter(owner: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(owner)


def _line(owner: type, details: Sequence[ErrorDetails], above: Sequence[str]) -> str:
    """Return what is wrong first; a misspelt key before the one that is missing for it."""
    strange = ("unexpected_keyword_argument", "extra_forbidden")
    first = min(details, key=lambda detail: detail["type"] not in strange)
    kind, place, value = first["type"], list(first["loc"]), first["input"]
    if place[-1:] == ["[key]"]:
        place, value = place[:-2], place[-2]
    names = [str(key) for key in place if not isinstance(key, int)]
    if owner is Study and names:
        names[0] = _GROUP_OF_FIELD.get(names[0], names[0])
    keys = [*above, *names]
    where, context = ".".join(keys), first.get("ctx", {})
    if kind in strange:
        allowed = keys_of(type_at(keys[len(above) : -1], owner)) or {}
        return str(_unknown_key(keys[:-1], keys[-1], allowed))
    if kind == "missing" or value == "???":  # OmegaConf's mark for a value that is to be given
        return f"{where} has no value"
    if kind in _BOUNDS:
        return f"{where}: {shown(value)} is too {_BOUNDS[kind].format(**context)}"
    if isinstance(reason := context.get("error"), Refused):
        return f"{where}{reason}"
    if kind == "list_type":
        reason = f"is not a list, such as {where}=[{shown(value)}]"
    return f"{where}: {shown(value)} {reason or 'is not a mapping'}"


def unknown(what: str, word: str, allowed: Iterable[str]) -> UserError:
    """Return the refusal of a word that is none of those allowed."""
    words = sorted(allowed)
    return UserError(f"unknown {what} {word!r}{nearest(word, words)} (allowed: {', '.join(words)})")


def _unknown_key(above: Sequence[str], key: str, allowed: Iterable[str]) -> UserError:
    return unknown(f"key of {'.'.join(above)}:" if above else "key", key, allowed)


def shown(value: object) -> str:
    """Return a value as a configuration has it; text in quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, int | float) else repr(value)


@cache
def config_keys() -> Mapping[str, object]:
    """Return the top-level keys of the configuration and the type of each."""
    hints = get_type_hints(Study, include_extras=True)
    # What is composed of the others.
    del hints["overrides"], hints["hosts"]
    return {"study": str} | {_GROUP_OF_FIELD.get(name, name): hint for name, hint in hints.items()}


def type_at(keys: Sequence[str], owner: type = Study) -> Any:
    """Return the type of a dotted key below a section.

    Raises
    ------
    UserError
        For the first part that does not exist.
    """
    hint: Any = owner
    for depth, key in enumerate(keys):
        known = keys_of(hint)
        if known is None:
            hint = bare(get_args(hint)[1]) if get_origin(hint) is dict else Any
        elif key in known:
            hint = bare(known[key])
        elif known:
            raise _unknown_key(keys[:depth], key, known)
        else:
            raise UserError(
                f"{'.'.join(keys)}: {'.'.join(keys[:depth])} is a value and has no keys"
            )
    return hint


def keys_of(hint: Any) -> Mapping[str, object] | None:
    """Return the keys below a value of this type; None where any name will do."""
    if hint is Study:
        return config_keys()
    if is_dataclass(hint):
        return get_type_hints(hint, include_extras=True)
    return None if hint is Any or get_origin(hint) is dict else {}


def bare(hint: Any) -> Any:
    """Return a type without None and checks; a mapping that changes a section is that section."""
    while True:
        if get_origin(hint) is Annotated:
            changes = [check for check in hint.__metadata__ if isinstance(check, Changes)]
            hint = changes[0].owner if changes else hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType):
            hint = get_args(hint)[0]
        else:
            return hint
