"""A launch's progress, as lines for the terminal."""

from __future__ import annotations

import json
import time
from typing import Any

from kvroad.files import write_json
from kvroad.measure.measurement import Measurement, cell_name
from kvroad.results import outcome_of
from kvroad.study.design import Cell, Launch

__all__ = ["Progress"]

_PROGRESS_S = 5.0


class Progress:
    """Turns the agent's events into lines for the terminal, one every few seconds."""

    def __init__(self, with_: Measurement, launch: Launch, cells: list[Cell]) -> None:
        self._with = with_
        self._launch = launch
        self._cells = {c.id: c for c in cells}
        self._phase = ""
        self._pulls = 0
        self._last = 0.0

    def on_event(self, row: dict[str, Any]) -> None:
        """Take one event of the agent."""
        if row["event"] == "phase_start":
            is_first = row["phase"] == "warmup"
            self._phase, self._pulls = row["phase"], row["pulls"]
            if is_first:
                cell = self._cells[row["cell"]]
                self._with.say(f"{cell_name(self._with, cell)}{self._time_left()}")
        elif row["event"] == "progress" and time.monotonic() - self._last > _PROGRESS_S:
            self._last = time.monotonic()
            phase = self._phase.replace("_", " ")
            self._with.say(f"    {phase}: {row['done']} of {self._pulls} pulls")
        elif row["event"] == "reaped":
            what = "the host has booted since" if row.get("rebooted") else "ended what was left of"
            self._with.say(f"    {what} an earlier launch: {row['tag']}")
        elif row["event"] == "recovered":
            self._with.say(f"    fetched what an earlier run had left on host {row['host']}")

    def _time_left(self) -> str:
        """Estimate from the cells that this run has measured so far; empty at the first."""
        path = self._with.results_dir / "runs" / f"{self._with.run_id}.json"
        now = time.time()
        try:
            started, done_before = json.loads(path.read_text())
        except (OSError, ValueError):
            write_json(path, [now, self._n_settled()])
            return ""
        done = self._n_settled() - done_before
        if done <= 0:
            return ""
        left = len(self._with.design.cells) - self._n_settled()
        minutes = (now - started) / done * left / 60
        return f", about {max(1, round(minutes))} min left"

    def _n_settled(self) -> int:
        results = self._with.results_dir
        outcomes = (outcome_of(results, cell.id) for cell in self._with.design.cells)
        return sum(o is not None and o["outcome"] == "proven" for o in outcomes)
