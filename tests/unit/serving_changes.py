"""Changes planted in the raw folder of a launch of serving engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raw_folders import edit, edit_claim, edit_rows

from kvroad.proof.judge import judge_raw
from kvroad.proof.witness import Outcome

Change = Callable[[Path], None]
CELL = "shm-p2048-b0-32926a8539ca"


REQUESTS = 16


PHASE = Path("serving") / CELL / "in_flight"


ROWS = PHASE / "profile_export.jsonl"


def add(name: str, by: float, role: str = "decode", edge: str = "end", source: str = "") -> Change:
    """Return a change of a counter in one snapshot of the phase in flight."""

    def change(raw: Path) -> None:
        path = raw / PHASE / f"{role}.{edge}.prom"
        label = f'source="{source}"' if source else ""
        pattern = re.compile(
            rf"^({re.escape(name)}\{{[^\n]*{re.escape(label)}[^\n]*\}}) (\S+)$", re.MULTILINE
        )
        text, n = pattern.subn(lambda m: f"{m[1]} {float(m[2]) + by}", path.read_text())
        assert n == 1, (name, n)
        path.write_text(text)

    return change


def rows(change: Callable[[dict[str, Any]], None], places: tuple[int, ...] = (3,)) -> Change:
    """Return a change of some of the requests that aiperf recorded in flight."""

    def change_rows(raw: Path) -> None:
        number = iter(range(REQUESTS))

        def one(row: dict[str, Any]) -> dict[str, Any]:
            if next(number) in places:
                change(row)
            return row

        edit_rows(raw / ROWS, one)

    return change_rows


def fail(row: dict[str, Any]) -> None:
    row["error"] = {"code": 500, "type": "Internal Server Error", "message": "boom"}


def metric(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["metrics"][name].update(value=value)


def drop_a_row(raw: Path) -> None:
    lines = (raw / ROWS).read_text().splitlines(keepends=True)
    (raw / ROWS).write_text("".join(lines[1:]))


def load(**facts: Any) -> Change:
    path = PHASE / "load.json"
    return lambda raw: (
        (raw / path).write_text(json.dumps(json.loads((raw / path).read_text()) | facts)) and None
    )


def claim(**fields: Any) -> Change:
    def change(raw: Path) -> None:
        plan = json.loads((raw / "plan.json").read_text())
        edit_claim(raw, serving=plan["claim"]["serving"] | fields)

    return change


def text(file: str, old: str, new: str) -> Change:
    return lambda raw: edit(raw / file, old, new)


def labels(old: str, new: str) -> Change:
    def change(raw: Path) -> None:
        for path in raw.glob("serving/*/*/decode.end.prom"):
            edit(path, old, new)

    return change


def said(option: str, words: str, *, is_there: bool = True) -> Change:
    line = {"option": option, "process": "decode-0", "text": words, "is_there": is_there}
    return lambda raw: claim(log_lines=[line])(raw)


def a_second_thread(raw: Path) -> None:
    """Let a second thread of decode print the table of its reads too, as num_threads=1 does."""
    log = raw / "decode-0.log"
    lines = log.read_text().splitlines()
    title = next(
        i for i, line in enumerate(lines) if "remote memory read by ucp_get*(multi)" in line
    )
    table = [line.replace(":31455:0]", ":31455:7]") for line in lines[title - 2 : title + 6]]
    log.write_text("\n".join([*lines, *table]) + "\n")


def no_threads(raw: Path) -> None:
    claim(num_threads=0)(raw)


def both(*changes: Change) -> Change:
    def change(raw: Path) -> None:
        for one in changes:
            one(raw)

    return change


def judged(raw: Path) -> Outcome:
    return judge_raw(raw, cell=CELL)
