"""What is not the same in two studies and is compared all the same: told, never hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvroad.analysis.compare.comparable import in_words, shown
from kvroad.analysis.saved_study import SavedStudy

__all__ = ["Difference", "differences"]

# Settings that change no number, or are told by other columns.
_NOT_TOLD = ("name", "overrides", "claims", "tracking", "launches", "prompt_tokens", "contrasts")
_NOT_TOLD_OF_HOST = ("transports", "price_per_hour", "lease_s", "strict", "address", "source")


@dataclass(frozen=True)
class Difference:
    """Something that is not the same in the reference and another study."""

    study: str
    what: str
    reference: str
    other: str


def differences(
    name: str,
    first: SavedStudy,
    other: SavedStudy,
    cells: pd.DataFrame,
    other_cells: pd.DataFrame,
) -> Iterator[Difference]:
    """Yield settings, versions, variables and host facts that are not the same."""
    settings = [_flat(study.settings) for study in (first, other)]
    for path in sorted(settings[0].keys() | settings[1].keys()):
        mine, theirs = (s.get(path, "not set") for s in settings)
        if mine != theirs and _is_of_both(path, first, other):
            yield Difference(name, path, mine, theirs)
    for column in ("nixl_version", "ucx_version", "gpus"):
        mine_set, their_set = (
            set(f[column].dropna().astype(str)) if column in f else set[str]()
            for f in (cells, other_cells)
        )
        if mine_set != their_set:
            yield Difference(name, column, in_words(mine_set), in_words(their_set))
    for arm in [a for a in cells["arm"].unique() if (other_cells["arm"] == a).any()]:
        yield from _environment_differences(name, arm, cells, other_cells)
    facts = [study.facts() for study in (first, other)]
    if not facts[0] or not facts[1]:
        lacking = first.folder if not facts[0] else other.folder
        yield Difference(name, "facts of the host", "not known", f"no raw files in {lacking}")
        return
    for fact in sorted(facts[0].keys() | facts[1].keys()):
        mine_set, their_set = (f.get(fact, set()) for f in facts)
        if mine_set != their_set:
            yield Difference(name, fact, in_words(mine_set), in_words(their_set))


def _is_of_both(path: str, first: SavedStudy, other: SavedStudy) -> bool:
    """Return whether a setting is one of an option that both studies have chosen."""
    group, _, rest = path.partition(".")
    if group not in ("variants", "transports"):
        return True
    option = rest.partition(".")[0]
    return all(option in (s.settings.get(group) or {}) for s in (first, other))


def _environment_differences(
    name: str, arm: str, cells: pd.DataFrame, other_cells: pd.DataFrame
) -> Iterator[Difference]:
    seen = [_environments(frame[frame["arm"] == arm]) for frame in (cells, other_cells)]
    for variable in sorted(seen[0].keys() | seen[1].keys()):
        mine, theirs = (s.get(variable, {"not set"}) for s in seen)
        if mine != theirs:
            yield Difference(name, f"{arm}: {variable}", in_words(mine), in_words(theirs))


def _environments(cells: pd.DataFrame) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for text in cells["environment"].unique() if "environment" in cells else []:
        for variable, value in json.loads(text or "{}").items():
            found.setdefault(variable, set()).add(str(value))
    return found


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Flatten the settings that are worth telling where they differ."""
    flat: dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{path}.{key}" if path else str(key), inner)
        elif value is not None:
            flat[path] = shown(value)

    apart = ("host", "hosts", "model")
    add("", {k: v for k, v in settings.items() if k not in (*_NOT_TOLD, *apart)})
    host = {k: v for k, v in (settings.get("host") or {}).items() if k not in _NOT_TOLD_OF_HOST}
    add("host", host)
    if hosts := settings.get("hosts"):
        add("hosts", [host["name"] for host in hosts])
    return {k: v for k, v in flat.items() if not k.endswith((".description", "_timeout_s"))}
