"""What two studies must have in common before an arm of one is held against that of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from kvroad.analysis.saved_study import SavedStudy

__all__ = [
    "arm_differs",
    "in_flight_differs",
    "in_words",
    "other_host",
    "shared",
    "shown",
    "unlike",
]

# Settings of which a number is a function, so that two values make two different numbers.
_MUST_AGREE = (
    *("engine.name", "engine.tensor_parallel_size", "engine.rank_pairs", "engine.memory"),
    *("engine.block_order", "engine.regions", "workload.block_tokens"),
)
# Of the model: its name is told where any of them differs.
_NOT_SHAPE = ("source",)
_IN_FLIGHT_MUST_AGREE = ("workload.concurrency",)
_HOST_FACTS = ("cpu", "machine", "n_cpus")


def unlike(first: SavedStudy, other: SavedStudy) -> Iterator[str]:
    """Say why two studies measure different things."""
    models = [
        {k: v for k, v in study.settings["model"].items() if k not in _NOT_SHAPE}
        for study in (first, other)
    ]
    if models[0] != models[1]:
        names = [model["name"] for model in models]
        what = f"{names[1]} against {names[0]}" if names[0] != names[1] else "shapes of the cache"
        yield f"the models differ ({what})"
    yield from _setting_differences(first, other, _MUST_AGREE)


def _setting_differences(
    first: SavedStudy, other: SavedStudy, paths: Sequence[str]
) -> Iterator[str]:
    for path in paths:
        value, other_value = (_at(study.settings, path) for study in (first, other))
        if value != other_value:
            yield f"{path} differs ({shown(other_value)} against {shown(value)})"


def _at(settings: Mapping[str, Any], path: str) -> Any:
    section, _, key = path.partition(".")
    return (settings.get(section) or {}).get(key)


def shown(value: Any) -> str:
    """Return a setting as text: JSON but for what is text already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def other_host(first: SavedStudy, other: SavedStudy) -> Iterator[str]:
    """Say why two studies were measured on different hosts, as far as can be told."""
    hint = "--across-hosts compares all the same"
    for path in ("host.name", "host.gpus"):
        for text in _setting_differences(first, other, [path]):
            yield f"{text}; {hint}"
    names = [[h["name"] for h in study.settings.get("hosts") or []] for study in (first, other)]
    if sorted(names[0]) != sorted(names[1]):
        yield f"hosts differ ({_listed(names[1])} against {_listed(names[0])}); {hint}"
    facts, other_facts = first.facts(), other.facts()
    for fact in _HOST_FACTS:
        if fact in facts and fact in other_facts and not facts[fact] & other_facts[fact]:
            words = in_words(other_facts[fact]), in_words(facts[fact])
            yield f"{fact} differs ({words[0]} against {words[1]}); {hint}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "one"


def in_flight_differs(first: SavedStudy, other: SavedStudy) -> str:
    """Say why pulls in flight are not the same load; empty where they are."""
    return "; ".join(_setting_differences(first, other, _IN_FLIGHT_MUST_AGREE))


def shared(
    cells: pd.DataFrame, other_cells: pd.DataFrame
) -> tuple[list[str], list[str], list[str]]:
    """Return the arms of both, and in words what the second has not, and has besides."""
    arms = [list(dict.fromkeys(frame["arm"])) for frame in (cells, other_cells)]
    shared = [arm for arm in arms[0] if arm in arms[1]]
    words = []
    for mine, theirs in ((cells, other_cells), (other_cells, cells)):
        more = [f"arm {arm}" for arm in dict.fromkeys(mine["arm"]) if arm not in shared]
        for arm in shared:
            lengths = set(_lengths(mine, arm)) - set(_lengths(theirs, arm))
            if lengths:
                listed = ", ".join(f"{n:,}" for n in sorted(lengths))
                more.append(f"arm {arm} at {listed} tokens")
        words.append(more)
    return shared, words[0], words[1]


def _lengths(cells: pd.DataFrame, arm: str) -> list[int]:
    return [int(n) for n in cells.loc[cells["arm"] == arm, "prompt_tokens"].unique()]


def arm_differs(
    arm: str, cells: pd.DataFrame, other_cells: pd.DataFrame, first: SavedStudy, other: SavedStudy
) -> str:
    """Say why an arm of the two studies is not one arm; empty where it is."""
    mine, theirs = (frame[frame["arm"] == arm] for frame in (cells, other_cells))
    variant = str(mine["variant"].iloc[0])
    settings = [(s.settings.get("variants") or {}).get(variant) or {} for s in (first, other)]
    for group in ("engine", "workload"):
        set_here, set_there = (each.get(group) or {} for each in settings)
        if set_here != set_there:
            return f"variant {variant} differs ({shown(set_there)} against {shown(set_here)})"
    for column, name in (("operation", "operation"), ("statistic", "statistic of a launch")):
        values = [set(frame[column].dropna()) for frame in (mine, theirs) if column in frame]
        if len(values) == 2 and all(values) and not values[0] & values[1]:
            return f"{name} differs ({in_words(values[1])} against {in_words(values[0])})"
    stamps = [set(_stamps(frame)) for frame in (mine, theirs)]
    if shared := stamps[0] & stamps[1]:
        return f"{len(shared)} of its cells are the very same measurements in both"
    return ""


def _stamps(cells: pd.DataFrame) -> Iterator[tuple[str, str]]:
    proven = cells[cells["outcome"] == "proven"]
    if "measured_at" in proven:
        yield from zip(proven["cell"], proven["measured_at"].astype(str))


def in_words(values: set[str]) -> str:
    """Return values in words, ``none`` where there are none."""
    return " or ".join(sorted(map(str, values))) or "none"
