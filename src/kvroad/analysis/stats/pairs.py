"""Which launches of two arms are pairs, and which arms may be compared at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvroad.analysis.stats.hosts import hosts_of
from kvroad.analysis.tables import DesignFile

__all__ = ["Sample", "find_sample"]

_VERSIONS = ["nixl_version", "ucx_version", "engine_version"]
_VERSION_SETTINGS = ("engine.nixl_version", "serving.vllm_version", "serving.dynamo_version")
# What is seen of a cell, and the settings that may make it differ between two arms.
_EXPLAINED_BY = {
    "descriptors": (
        "workload.block_tokens",
        "engine.regions",
        "engine.tensor_parallel_size",
        "serving.packed_kv",
        "serving.cross_layer_blocks",
    ),
    "pull_bytes": ("workload.block_tokens", "engine.tensor_parallel_size"),
    "nixl_version": ("engine.nixl_version",),
    "ucx_version": ("engine.nixl_version",),
    "engine_version": ("serving.vllm_version", "serving.dynamo_version"),
    # Arms must be asked the same; no setting explains other prompts.
    "prompts": (),
}


@dataclass(frozen=True)
class Sample:
    """Launches of the two arms at one prompt length.

    When ``is_paired``, rows at the same place are launches of one block; otherwise all
    proven launches of each arm on hosts that have both, and ``notes`` say what kept blocks
    from being paired.
    ``withheld`` names a difference between the arms that neither declares, or is empty.
    """

    arm: pd.DataFrame
    baseline: pd.DataFrame
    is_paired: bool
    notes: tuple[str, ...] = ()
    withheld: str = ""


def find_sample(
    cells: pd.DataFrame, design: DesignFile, names: tuple[str, str], prompt_tokens: int
) -> Sample:
    """Pair the proven launches of two arms by block where run, boot and versions agree.

    Versions may differ between the arms where a variant asks for that; what else differs
    and is not declared withholds the comparison.
    """
    at_prompt = cells[cells["prompt_tokens"] == prompt_tokens]
    proven = at_prompt[at_prompt["outcome"] == "proven"]
    left, right = (proven[proven["arm"] == name].set_index("block") for name in names)
    declared = design.facts_of(names[0]).declares | design.facts_of(names[1]).declares
    notes = [*_missing(at_prompt, names), *_dropped((left, right), names)]
    if undeclared := "; ".join(_differences(left, right, declared)):
        return Sample(left, right, False, tuple(notes), undeclared)
    is_version_arm = not declared.isdisjoint(_VERSION_SETTINGS)
    blocks = left.index.intersection(right.index).sort_values()
    reasons = _unpaired_because(left.loc[blocks], right.loc[blocks], is_version_arm)
    paired = blocks[reasons == ""]
    known = [name for name in _VERSIONS if name in left]
    versions = [side.loc[paired, known].drop_duplicates() for side in (left, right)]
    if any(len(rows) > 1 for rows in versions):
        reasons[:] = "versions change between blocks"
        paired = paired[:0]
    if len(paired) >= min(2, len(blocks)) and len(paired):
        if left_out := len(blocks) - len(paired):
            notes.append(f"{left_out} of {len(blocks)} blocks left out: {_listed(reasons)}")
        return Sample(left.loc[paired], right.loc[paired], True, tuple(notes))
    if len(left) and len(right):
        notes.append(f"not interleaved: {_listed(reasons) or 'no block has both arms'}")
    left, right, note = _on_common_hosts(left, right)
    return Sample(left, right, False, (*notes, *note))


def _on_common_hosts(
    left: pd.DataFrame, right: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return the launches on hosts that have both arms, and what was left out."""
    mine, theirs = hosts_of(left), hosts_of(right)
    alone = set(mine) ^ set(theirs)
    if not alone or not len(left) or not len(right):
        return left, right, []
    note = f"left out, since arms are compared within a host: {', '.join(sorted(alone))}"
    kept = [[host not in alone for host in hosts] for hosts in (mine, theirs)]
    return left[kept[0]], right[kept[1]], [note]


def _listed(reasons: npt.NDArray[np.str_]) -> str:
    return ", ".join(sorted(set(reasons[reasons != ""])))


def _missing(at_prompt: pd.DataFrame, names: tuple[str, str]) -> Iterable[str]:
    for name in names:
        launches = at_prompt[at_prompt["arm"] == name]
        proven = int((launches["outcome"] == "proven").sum())
        if proven < len(launches):
            yield f"{name}: {proven} of {len(launches)} launches proven"


def _dropped(sides: tuple[pd.DataFrame, pd.DataFrame], names: tuple[str, str]) -> Iterable[str]:
    for name, side in zip(names, sides, strict=True):
        if n := int(side["n_dropped"].sum()):
            yield f"{name}: {n} pulls dropped as data errors"


def _unpaired_because(
    left: pd.DataFrame, right: pd.DataFrame, is_version_arm: bool
) -> npt.NDArray[np.str_]:
    """Return per block why its two launches are no pair, or an empty text; unknown is unequal."""
    checks = {"runs": ["run_id"], "boots": ["boot_id"], "versions": _VERSIONS}
    tests, texts = [], []
    for what, columns in checks.items():
        columns = [name for name in columns if name in left]
        unknown = (left[columns].isna() | right[columns].isna()).any(axis=1)
        unequal = (left[columns] != right[columns]).any(axis=1)
        if what == "versions" and is_version_arm:
            unequal[:] = False
        tests += [unknown.to_numpy(), unequal.to_numpy()]
        texts += [f"{what} not known", f"different {what}"]
    return np.select(tests, texts, default="").astype("U32")


def _differences(
    left: pd.DataFrame, right: pd.DataFrame, declared: frozenset[str]
) -> Iterable[str]:
    """Yield what no launch of the two arms has in common and neither arm declares."""
    for column, settings in _EXPLAINED_BY.items():
        if column not in left:
            continue
        a, b = (set(side[column].dropna()) for side in (left, right))
        if a and b and not a & b and not declared.intersection(settings):
            yield f"{column.replace('_', ' ')} {_values(a)} against {_values(b)}"
    mine, theirs = (_environments(side["environment"]) for side in (left, right))
    for name in sorted(mine.keys() | theirs.keys()) if mine and theirs else ():
        value, base = mine.get(name, {"unset"}), theirs.get(name, {"unset"})
        if not value & base and f"env.{name}" not in declared:
            yield f"{name} {_values(value)} against {_values(base)}"


def _values(values: set[object]) -> str:
    texts = sorted(str(v) if isinstance(v, str) else f"{v:,}" for v in values)
    return " or ".join(texts)


def _environments(texts: pd.Series[str]) -> dict[str, set[object]]:
    """Return the values that each variable has over some launches."""
    found: dict[str, set[object]] = {}
    for text in texts.dropna().unique():
        for name, value in json.loads(text).items():
            found.setdefault(name, set()).add(value)
    return found
