"""Write the tables of keys in docs/configuration.md from the declarations of the fields.

``uv run python -m tools.configuration_page``, in the root of the repository.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from kvroad.study import fields as declared
from kvroad.study.allowed import OneOf
from kvroad.study.serving import HostServing, ServingOptions
from kvroad.study.setting import Identity, default_of, settings_of
from kvroad.study.typed import bare, config_keys

PAGE = Path("docs/configuration.md")
BEGIN, END = "<!-- keys: made by tools/configuration_page.py -->", "<!-- end of keys -->"
SECTIONS = {
    "": declared.Study,
    "host": declared.Host,
    "host.prefill, host.decode": declared.HostSide,
    "host.transports.NAME": declared.TransportOverride,
    "host.serving": HostServing,
    "engine": declared.Engine,
    "engine.serving": ServingOptions,
    "transport.NAME": declared.Transport,
    "variant.NAME": declared.Variant,
    "model": declared.Model,
    "workload": declared.Workload,
    "claims": declared.Claims,
    "road": declared.RoadTolerances,
    "tracking": declared.Tracking,
}
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any"}
_BOUNDS = {Ge: ("ge", "{} or more"), Gt: ("gt", "above {}"), Le: ("le", "{} or less")}
_BOUNDS[Lt] = ("lt", "below {}")
_CELL = {
    Identity.YES: "yes",
    Identity.IF_CHANGED: "if not the default",
    Identity.ELSEWHERE: "by what it says",
    Identity.NO: "",
}


def renewed(page: str) -> str:
    """Return the page with the tables between its marks made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.split(END)[1]}"


def tables() -> str:
    """Return a heading, a sentence and a table of keys for each section."""
    return "\n".join(line for where, owner in SECTIONS.items() for line in _section(where, owner))


def _section(where: str, owner: type) -> Iterator[str]:
    yield f"### {'`' + where + '`' if where else 'At the top'}\n"
    summary = (owner.__doc__ or "").splitlines()[0].replace("``", "`")
    yield f"{summary}\n"
    yield "| key | value | default | cell | what |"
    yield "| --- | --- | --- | --- | --- |"
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint, setting = hints[field.name], settings_of(owner)[field.name]
        is_key = owner is not declared.Study or field.name in config_keys()
        has_table = is_dataclass(bare(hint)) and owner is not declared.Variant
        if is_key and not has_table:
            cell = _CELL[setting.identity]
            cells = (f"`{field.name}`", _value(hint), _default(field), cell, setting.help)
            yield "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"
    yield ""


def _value(hint: Any) -> str:
    """Return in words what a value of this type may be."""
    origin, below = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [
            form.format(f"{getattr(check, name):g}")
            for check in hint.__metadata__
            if type(check) in _BOUNDS
            for name, form in [_BOUNDS[type(check)]]
        ]
        choices = [word for c in hint.__metadata__ if type(c) is OneOf for word in c.choices]
        words = [f"`{word}`" for word in choices]
        return ", ".join(words) or " ".join([_value(below[0]), ", ".join(bounds)]).strip()
    if origin in (Union, types.UnionType):
        return f"{_value(below[0])}; or null"
    if origin is list:
        return f"list of: {_value(below[0])}"
    if origin is dict:
        return f"mapping to: {_value(below[1])}"
    return _TYPES.get(hint, "a section")


def _default(field: Any) -> str:
    default = default_of(field)
    if default is MISSING:
        return "to be given"
    return f"`{default if isinstance(default, str) and default else json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
