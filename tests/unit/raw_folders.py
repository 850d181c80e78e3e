"""Raw folders of real launches, and how a test changes a line in a copy of one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[1] / "data" / "samples"


def copy_raw(name: str, folder: Path) -> Path:
    """Copy a raw folder of the samples into ``folder``."""
    return shutil.copytree(SAMPLES / "raw" / name, folder / name)


def edit(path: Path, old: str, new: str, count: int = -1) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


def edit_rows(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in map(change, rows) if row is not None]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_claim(folder: Path, **fields: Any) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["claim"].update(fields)
    (folder / "plan.json").write_text(json.dumps(plan))


def statuses(outcome: Any) -> dict[str, str]:
    return {w.name: w.status for w in outcome.witnesses}
