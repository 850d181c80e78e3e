"""Writes tables and texts so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

__all__ = ["write_atomic", "write_json", "write_table", "write_text"]


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then rename it; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_table(frame: pd.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write ``<stem>.parquet`` and ``<stem>.csv``; equal frames give equal CSV bytes."""
    parquet = stem.with_name(f"{stem.name}.parquet")
    csv = stem.with_name(f"{stem.name}.csv")
    write_atomic(parquet, lambda path: frame.to_parquet(path, index=False))
    write_atomic(csv, lambda path: frame.to_csv(path, index=False, lineterminator="\n"))
    return parquet, csv


def write_text(text: str, path: Path) -> Path:
    """Write UTF-8 text with Unix line ends."""
    return write_atomic(path, lambda p: p.write_text(text, encoding="utf-8", newline="\n"))


def write_json(data: Any, path: Path) -> Path:
    """Write indented JSON; NaN is refused, so that every reader can parse it."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(text + "\n", path)
