"""Read and write JSON, atomically; the time as files give it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["read_json", "utc_now", "write_json"]


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None where there is no file or none in it."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: Any) -> None:
    """Write JSON under a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def utc_now() -> str:
    """Return the time in UTC to the second, as ISO 8601 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
