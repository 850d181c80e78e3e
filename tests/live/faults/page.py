"""Writes docs/faults.md from what the fault matrix measured: page.py FAULTS_JSON PAGE."""

import json
import sys
from pathlib import Path

HEAD = """\
# What breaks, and what is left

<!-- Written by tests/live/faults/page.py from {source}; do not edit. -->

Each row is one launch of the smoke study over a real sshd on 127.0.0.1, broken on purpose.
Every process of the launch ignores TERM, has a child in a session of its own, has wiped its
environment and taken another name. Measured with `host.lease_s=20` and
`engine.stop_timeout_s=3`; the times include a poll of 0.03 s.

- **clean after**: seconds from the fault until nothing of the launch runs on the host any more.
- **left**: processes that still run after that.
- **lost**: finished cells that are gone or changed after the next run, of those there were.

| fault | clean after | left | lost | next run |
| --- | --- | --- | --- | --- |
"""
CLOCK = """\
| wall clock stepped | unit test | - | - | not disturbed |

The lease is held against the monotonic clock: tests/unit/test_lease.py steps the wall clock and
nothing ends.

## What the user reads
"""
TAIL = """
Run it again: `uv run pytest --run-slow tests/live/faults --faults-json docs/faults.json`, then
`uv run python tests/live/faults/page.py docs/faults.json docs/faults.md`.
"""


def page(rows: list[dict[str, object]], source: str) -> str:
    text = HEAD.format(source=source)
    for row in rows:
        seconds = row["seconds_until_clean"]
        clean = "not applicable" if seconds is None else f"{seconds} s"
        lost = f"{row['cells_lost']} of {row['cells_finished_before']}"
        cells = [row["fault"], clean, row["processes_left"], lost, row["next_run"]]
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    text += CLOCK
    for row in rows:
        text += f"\n**{row['fault']}**\n\n    {row['message']}\n"
        if row["note"]:
            text += f"\n{row['note']}\n"
    return text + TAIL


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    rows = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(page(rows, source.name), encoding="utf-8")


if __name__ == "__main__":
    main()
