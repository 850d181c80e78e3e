"""What a value of the study may be: checks that annotate the type of a field, and common types.

pydantic runs them and is loaded when a study is checked, not before: to list the keys for a
shell's completion needs none of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from kvroad.errors import nearest
from kvroad.evidence.redact import redact_env

__all__ = [
    "MOST_PORT",
    "Address",
    "BindAddress",
    "Changes",
    "Count",
    "Devices",
    "Env",
    "FileName",
    "Flag",
    "FreeText",
    "Gpus",
    "HostPath",
    "Lengths",
    "Natural",
    "Number",
    "OneOf",
    "Plain",
    "Port",
    "Positive",
    "Refused",
    "Share",
    "Some",
    "Text",
    "Tolerance",
    "User",
    "Validator",
    "Whole",
    "matches",
    "must",
    "not_among",
]

T = TypeVar("T")
MOST_PORT = 65535


class Refused(ValueError):
    """What a check raises where the value itself is not to be shown: the text follows the key."""


@dataclass(frozen=True)
class Validator:
    """A function that returns the value to take, or raises.

    The text of a ValueError follows ``KEY: VALUE``, that of :class:`Refused` follows ``KEY``.
    """

    function: Callable[[Any], Any]
    is_before_type: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        if self.is_before_type:
            return core_schema.no_info_before_validator_function(self.function, handler(source))
        return core_schema.no_info_after_validator_function(self.function, handler(source))


def must(test: Callable[[Any], object], otherwise: str) -> Validator:
    """Return the check that refuses values of which ``test`` is not true."""

    def check(value: Any) -> Any:
        if not test(value):
            raise ValueError(otherwise)
        return value

    return Validator(check)


def _not_empty(instead: str) -> Validator:
    def check(values: list[Any]) -> list[Any]:
        if not values:
            raise Refused(f" is empty: {instead}")
        return values

    return Validator(check)


def _distinct(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise Refused(f": {value} is named twice; once is enough")
    return values


def not_among(word: str, words: list[str]) -> str:
    """Return what is said of a word that is none of some."""
    return f"is not allowed{nearest(word, words)} (allowed: {', '.join(words)})"


@dataclass(frozen=True, eq=False)
class OneOf:
    """The check that a word is one of some: of a registry, which is asked at each check."""

    choices: Iterable[str]

    def _check(self, value: str) -> str:
        if value not in (words := list(self.choices)):
            raise ValueError(not_among(value, words))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return Validator(self._check).__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True)
class Changes:
    """The check of a mapping that sets some of the fields of another section."""

    owner: type

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        hints = get_type_hints(self.owner, include_extras=True)
        return core_schema.typed_dict_schema(
            {
                name: core_schema.typed_dict_field(handler.generate_schema(hint), required=False)
                for name, hint in hints.items()
            },
            extra_behavior="forbid",
        )


def _text(value: object) -> str:
    # A bare 1e3 or true is a number or a truth value by now: its spelling is lost.
    if type(value) in (str, int) and value != "???":
        return str(value)
    raise ValueError("is not text; put the value in quotes so that it stays as written")


def _number(kind: type, pattern: str, otherwise: str) -> Validator:
    def check(value: object) -> Any:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(otherwise)
        return kind(str(value))

    return Validator(check, is_before_type=True)


def _flag(value: object) -> bool:
    if value is True or value is False:
        return value
    raise ValueError("is not true or false")


def _plain(value: Any) -> Any:
    """Return a free-form value with text as the keys of its mappings."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _environment(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if redact_env({name: value})[name] != value:
            raise Refused(
                f".{name} looks like a secret, which would end up in plans and reports: "
                "export it on the host, in the file that host.source names"
            )
    if "UCX_TLS" in values:
        raise Refused(
            ".UCX_TLS belongs to the transport: set transport.<name>.ucx_tls or, "
            "for one host, host.transports.<name>.ucx_tls"
        )
    return values


def matches(pattern: str, otherwise: str) -> Validator:
    """Return the check that refuses text of which the pattern is not the whole."""
    return must(re.compile(pattern).fullmatch, otherwise)


Flag = Annotated[bool, Validator(_flag, is_before_type=True)]
Whole = Annotated[int, _number(int, r"[+-]?\d+", "is not a whole number")]
Natural = Annotated[Whole, Ge(0)]
Count = Annotated[Whole, Ge(1)]
Port = Annotated[Count, Le(MOST_PORT)]
Gpus = Annotated[list[Natural], Validator(_distinct)]
Some = Annotated[list[T], _not_empty("leave it null for all of them")]
Lengths = Annotated[
    list[Count], _not_empty("name at least one length, such as [4096]"), Validator(_distinct)
]
Number = Annotated[
    float, _number(float, r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", "is not a number")
]
Tolerance = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Share = Annotated[Positive, Lt(1)]
# Keys and values of any kind, as a file has them.
Plain = Annotated[dict[str, Any], Validator(_plain, is_before_type=True)]
FreeText = Annotated[str, Validator(_text, is_before_type=True)]
Text = Annotated[FreeText, must(str.isprintable, "holds a line break or another control character")]
FileName = Annotated[
    Text,
    matches(
        r"[A-Za-z0-9][A-Za-z0-9._-]*",
        "becomes part of a file name; allowed are letters, digits, '.', '_' and '-', "
        "the first a letter or digit",
    ),
]
EnvName = Annotated[
    Text,
    matches(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "is not the name of an environment variable; "
        "allowed are letters, digits and '_', the first not a digit",
    ),
]
Env = Annotated[dict[EnvName, Text], Validator(_environment)]
Devices = list[
    Annotated[Text, matches(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*", "is not the name of a device")]
]
# Names that reach ssh_config, its Match exec and ProxyCommand: nothing a shell would act on.
Address = Annotated[
    Text, matches(r"\w[\w.:%-]*", "is not allowed (allowed: letters, digits and . : % _ -)")
]
User = Annotated[
    Text, matches(r"\w[\w.@+-]*", "is not allowed (allowed: letters, digits and . @ + _ -)")
]
BindAddress = Annotated[
    Text, matches(r"\w[\w.:%-]*|::", "is not allowed (allowed: an address of the host)")
]
HostPath = Annotated[Text, matches(r"(?!-).*\S.*", "is not a path; not empty, no '-' in front")]
