"""Files written so that a reader never sees half of one; JSON; the time as files give it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["read_json", "utc_now", "write_atomic", "write_json", "write_text"]


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


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text with Unix line ends."""
    return write_atomic(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None where there is no file or none in it."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: Any, *, sort_keys: bool = True, allow_nan: bool = True) -> Path:
    """Write indented JSON.

    Raises
    ------
    ValueError
        For a NaN, which not every reader can parse, where ``allow_nan`` is false.
    """
    text = json.dumps(data, indent=1, sort_keys=sort_keys, ensure_ascii=False, allow_nan=allow_nan)
    return write_text(path, text + "\n")


def utc_now() -> str:
    """Return the time in UTC to the second, as ISO 8601 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
