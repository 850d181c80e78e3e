"""Whether the KV blocks that decode pulled are those of prefill, by the plug-in's digests."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TypedDict

from .client import Failed

__all__ = ["check_cache"]


class _Digests(TypedDict, total=False):
    """What the plug-in wrote of one rank: blocks by group, digests by cache; or an error."""

    blocks: list[int]
    digests: dict[str, str]
    error: str


_WAIT_S = 10.0
_POLL_S = 0.1


def check_cache(folder: Path, ranks: int, wait_s: float = _WAIT_S) -> str:
    """Compare the digests of both engines, rank by rank; return what was found, in words.

    Raises
    ------
    Failed
        When a block differs: vLLM would answer with wrong tokens and say nothing.
    """
    deadline = time.monotonic() + wait_s
    names = [f"{side}.{rank}.json" for side in ("prefill", "decode") for rank in range(ranks)]
    while missing := [name for name in names if not (folder / name).is_file()]:
        if time.monotonic() > deadline:
            return _not_checked(folder, missing)
        time.sleep(_POLL_S)
    n_blocks = n_layers = 0
    for rank in range(ranks):
        sent, pulled = (_read(folder / f"{side}.{rank}.json") for side in ("prefill", "decode"))
        for side, row in (("prefill", sent), ("decode", pulled)):
            if "error" in row:
                return f"not checked: {side}, rank {rank}: {row['error']}"
        if sent["blocks"] != pulled["blocks"]:
            return f"not checked: prefill has {sent['blocks']} blocks, decode {pulled['blocks']}"
        if sent["digests"].keys() != pulled["digests"].keys():
            return "not checked: the engines name their layers differently"
        wrong = [
            name for name, digest in sent["digests"].items() if pulled["digests"][name] != digest
        ]
        if wrong:
            raise Failed(
                f"cache check: what decode pulled differs from prefill's blocks in {len(wrong)} of "
                f"{len(sent['digests'])} caches of rank {rank}, such as {wrong[0]}"
            )
        n_blocks, n_layers = sum(sent["blocks"]), len(sent["digests"])
    return f"equal: {n_blocks} blocks in {n_layers} cache{'s' if n_layers > 1 else ''}"


def _not_checked(folder: Path, missing: list[str]) -> str:
    for path in sorted(folder.glob("*.json")):
        row = _read(path)
        if "error" in row:
            return f"not checked: {path.stem}: {row['error']}"
    return f"not checked: no digests of {missing[0].partition('.')[0]}"


def _read(path: Path) -> _Digests:
    value: _Digests = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}
