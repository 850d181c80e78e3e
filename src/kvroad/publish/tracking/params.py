"""What a cell was measured with, as params: what a comparison of two runs lines up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["cell_params"]

_NAMED = ("arm", "transport", "variant", "prompt_tokens", "block")
_FACTS = ("kernel", "cpu", "n_cpus")


def cell_params(row: Mapping[str, Any], identity: Mapping[str, Any], raw: Path) -> dict[str, Any]:
    """Return the params of a cell's run; what is not known is None.

    Parameters
    ----------
    row
        The cell's row of the cells table.
    identity
        What the cell is named by, from its ``cell.json``: settings of engine and workload
        become ``setting/engine.<name>`` and so on, its environment ``setting/env.<name>``.
    raw
        Its raw folder, whose ``facts.json`` tells driver, kernel and CPU.
    """
    facts = _facts(raw)
    drivers = {str(gpu.get("driver_version")) for gpu in facts.get("gpus") or []}
    return {
        **{name: row.get(name) for name in _NAMED},
        "nixl": row.get("nixl_version"),
        "ucx": row.get("ucx_version"),
        "host": (identity.get("host") or {}).get("name"),
        "model": (identity.get("model") or {}).get("name"),
        "gpus": row.get("gpus"),
        "driver": ", ".join(sorted(drivers)) or None,
        **{name: facts.get(name) for name in _FACTS},
        "seed": identity.get("seed"),
        # The compare page plots the first params that differ: arm and prompt_tokens sort first.
        **_below("setting/engine", identity.get("engine")),
        **_below("setting/workload", identity.get("workload")),
        **_below("setting/serving", identity.get("serving")),
        **_below("setting/env", identity.get("environment")),
    }


def _below(name: str, values: Any) -> dict[str, Any]:
    """Return the plain values of a section, each below its name."""
    if not isinstance(values, Mapping):
        return {}
    return {
        f"{name}.{key}": value
        for key, value in values.items()
        if not isinstance(value, dict | list)
    }


def _facts(raw: Path) -> dict[str, Any]:
    try:
        facts = json.loads((raw / "facts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
