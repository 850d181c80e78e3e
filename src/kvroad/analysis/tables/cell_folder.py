"""Reads cell folders; what does not match its manifest is not read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.json as pa_json

from kvroad.analysis.tables.design_file import DesignCell
from kvroad.analysis.tables.metrics import WARMUP
from kvroad.errors import UserError
from kvroad.evidence.scan import LineScan
from kvroad.evidence.serving import (
    NOT_CHECKED,
    SERVED_FILES,
    ServedPhase,
    cache_check_of,
    folder_of,
    served_phase,
)
from kvroad.evidence.ucx import parse_lines

__all__ = ["CellFolder", "parse_pulls", "read_cell"]

_INTEGERS = [
    "pull",
    "rank",
    "descriptors_planned",
    "descriptors_given",
    "descriptors_moved",
    "bytes_planned",
    "bytes_moved",
    "in_flight",
    "start_mono_ns",
]
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("cell", "phase", "operation", "state", "error")]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in ("post_us", "xfer_us", "wall_us")]
    + [("verified", pa.bool_())]
)
_FACTS = ("facts.json", "prefill.facts.json", "decode.facts.json")
_VERSION_LINE = b"Version "
_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


@dataclass(frozen=True)
class CellFolder:
    """What a cell folder says; ``defect`` is why its raw files are not read, or empty."""

    planned: DesignCell
    # As the files have them: cells measured by older versions have other fields.
    identity: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    ucx_versions: tuple[str, ...] = ()
    first_phase: tuple[str, int] | None = None
    pulls: list[bytes] = field(default_factory=list)
    served: tuple[ServedPhase, ...] = ()
    cache_check: str = NOT_CHECKED
    defect: str = ""

    @property
    def verdict(self) -> str:
        """Return proven, refused, failed, or not measured."""
        if self.defect:
            return "not measured"
        return str(self.outcome.get("outcome", "not measured"))


def read_cell(planned: DesignCell, results_dir: Path) -> CellFolder:
    """Read one planned cell's folder below ``results_dir/cells``; an absent one is empty.

    Raises
    ------
    UserError
        When ``cell.json`` or ``outcome.json`` is there and is no JSON object.
    """
    folder = results_dir / "cells" / planned.cell
    outcome = _json_file(folder / "outcome.json")
    identity = _json_file(folder / "cell.json")
    if not outcome:
        return CellFolder(planned, identity)
    raw = folder / "raw"
    try:
        files = _checked_files(raw)
        served = _served(raw, planned.cell)
    except (OSError, ValueError, KeyError, TypeError) as error:
        # A refused or failed cell may have ended before there was anything to keep.
        is_claimed = outcome.get("outcome") == "proven"
        defect = f"raw folder is not whole: {error}" if is_claimed else ""
        return CellFolder(planned, identity, outcome, defect=defect)
    pulls = [line for name, data in files.items() if name.startswith("pulls-") for line in data]
    return CellFolder(
        planned,
        identity,
        outcome,
        facts=_facts(files),
        ucx_versions=_ucx_versions(files),
        first_phase=_first_phase(files.get("events.jsonl", []), planned.cell),
        pulls=pulls,
        served=served,
        cache_check=_cache_check(files.get("events.jsonl", [])),
    )


def parse_pulls(folders: Iterable[CellFolder]) -> pd.DataFrame:
    """Return one row per line of the pull files, in order, with ``folder`` naming the cell.

    Rows of other cells of the same launch are left out. Missing fields are null.

    Raises
    ------
    UserError
        When a line is no JSON object or a value has the wrong type.
    """
    kept = [folder for folder in folders if folder.pulls]
    table = _parse_lines(kept) if kept else _SCHEMA.empty_table()
    frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    frame["folder"] = [f.planned.cell for f in kept for _ in f.pulls]
    is_of_cell = frame["cell"] == frame["folder"]
    return frame[is_of_cell].drop(columns="folder").reset_index(drop=True)


def _parse_lines(folders: list[CellFolder]) -> pa.Table:
    lines = [line for folder in folders for line in folder.pulls]
    try:
        return _parse_json(lines)
    except pa.ArrowInvalid as error:
        # One buffer for all cells is what makes this fast; only now is the culprit searched.
        for folder in folders:
            try:
                _parse_json(folder.pulls)
            except pa.ArrowInvalid as fault:
                raise UserError(f"pulls of cell {folder.planned.cell}: {fault}") from fault
        raise UserError(f"pulls: {error}") from error


def _parse_json(lines: list[bytes]) -> pa.Table:
    options = pa_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    return pa_json.read_json(pa.BufferReader(b"\n".join(lines) + b"\n"), parse_options=options)


def _json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object")
    return data


def _checked_files(raw: Path) -> dict[str, list[bytes]]:
    """Return the lines of the files that tables are made of, each equal to its hash."""
    manifest = json.loads((raw / "manifest.json").read_bytes())
    files = {}
    for name, entry in sorted(manifest.items()):
        is_log = name.endswith(".log")
        is_fact = name == "events.jsonl" or name in _FACTS
        if not (is_log or is_fact or name.startswith("pulls-")):
            continue
        # A serving engine's log is long, and its version line is all that is needed here.
        lines, digest = _read(raw / name, _VERSION_LINE if is_log else b"")
        if digest != entry["sha256"]:
            raise ValueError(f"{name} has another hash than the manifest says")
        files[name] = lines
    return files


def _read(path: Path, wanted: bytes) -> tuple[list[bytes], str]:
    """Return the lines that hold ``wanted``, or all that are not blank, and the file's hash."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if wanted:
            lines = [line for _, line in LineScan(file, [wanted], see=digest.update)]
        else:
            data = file.read()
            digest.update(data)
            lines = [line for line in data.split(b"\n") if line.strip()]
    return lines, digest.hexdigest()


def _checked(path: Path, name: str, sha256: str) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{name} has another hash than the manifest says")
    return data


def _served(raw: Path, cell: str) -> tuple[ServedPhase, ...]:
    """Read the phases of a cell of serving engines; none for a replay."""
    manifest = json.loads((raw / "manifest.json").read_bytes())
    if "plan.json" not in manifest:
        return ()
    plan = json.loads(_checked(raw / "plan.json", "plan.json", manifest["plan.json"]["sha256"]))
    if not (plan.get("claim") or {}).get("serving"):
        return ()
    phases = []
    for planned in (p for c in plan["cells"] if c["cell"] == cell for p in c["phases"]):
        names = {n: f"{folder_of(cell, planned['name'])}/{n}" for n in SERVED_FILES}
        files = {
            name: _checked(raw / path, path, manifest[path]["sha256"]).decode(errors="replace")
            for name, path in names.items()
            if path in manifest
        }
        phases.append(served_phase(cell, planned["name"], planned["command"]["line"], files))
    return tuple(phases)


def _facts(files: dict[str, list[bytes]]) -> dict[str, Any]:
    """Return the facts of the host, and below its side's name those of a passive half's host.

    The boot of a launch on two hosts is the boots of both.
    """
    sides = {name: json.loads(b"".join(files[name])) for name in _FACTS if name in files}
    facts: dict[str, Any] = sides.pop("facts.json", {})
    for name, other in sides.items():
        facts["boot_id"] = f"{facts.get('boot_id')} {other.get('boot_id')}"
        facts[name.removesuffix(".facts.json")] = other
    return facts


def _ucx_versions(files: dict[str, list[bytes]]) -> tuple[str, ...]:
    """Return the UCX versions that the processes' own log lines name, each once."""
    logs = {name: lines for name, lines in files.items() if name.endswith(".log")}
    records = [
        record
        for name, lines in logs.items()
        for record in parse_lines((line.decode(errors="replace") for line in lines), name).versions
    ]
    return tuple(sorted({record.version for record in records}))


def _cache_check(lines: list[bytes]) -> str:
    return cache_check_of(json.loads(line) for line in lines if b'"cache_check"' in line)


def _first_phase(lines: list[bytes], cell: str) -> tuple[str, int] | None:
    """Return time and monotonic time of the cell's first measured phase; None without one."""
    for line in lines:
        if b'"phase_start"' not in line:
            continue
        event = json.loads(line)
        if event.get("cell") == cell and event.get("phase") != WARMUP:
            return str(event.get("time", "")), int(event.get("mono_ns", 0))
    return None
