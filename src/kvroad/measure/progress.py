"""A launch's progress, as lines for the terminal."""

from __future__ import annotations

import json
import time

from kvroad.evidence.events import AgentEvent
from kvroad.files import write_json
from kvroad.measure.measuring_run import MeasuringRun, cell_name
from kvroad.results import outcome_of
from kvroad.study.design import Cell, Launch

__all__ = ["Progress"]

_PROGRESS_S = 5.0


class Progress:
    """Turns the agent's events into lines for the terminal, one every few seconds."""

    def __init__(self, run: MeasuringRun, launch: Launch, cells: list[Cell]) -> None:
        self._run = run
        self._launch = launch
        self._cells = {c.id: c for c in cells}
        self._phase = ""
        self._pulls = 0
        self._last = 0.0

    def on_event(self, event: AgentEvent) -> None:
        """Take one event of the agent."""
        if event["event"] == "phase_start":
            is_first = event["phase"] == "warmup"
            self._phase, self._pulls = event["phase"], event["pulls"]
            if is_first:
                cell = self._cells[event["cell"]]
                self._run.say(f"{cell_name(self._run, cell)}{self._time_left()}")
        elif event["event"] == "progress" and time.monotonic() - self._last > _PROGRESS_S:
            self._last = time.monotonic()
            phase = self._phase.replace("_", " ")
            self._run.say(f"    {phase}: {event['done']} of {self._pulls} pulls")
        elif event["event"] == "reaped":
            what = (
                "the host has booted since" if event.get("rebooted") else "ended what was left of"
            )
            self._run.say(f"    {what} an earlier launch: {event['tag']}")
        elif event["event"] == "recovered":
            self._run.say(f"    fetched what an earlier run had left on host {event['host']}")

    def _time_left(self) -> str:
        """Estimate from the cells that this run has measured so far; empty at the first."""
        path = self._run.results_dir / "runs" / f"{self._run.run_id}.json"
        now = time.time()
        try:
            started, done_before = json.loads(path.read_text())
        except (OSError, ValueError):
            write_json(path, [now, self._n_settled()])
            return ""
        done = self._n_settled() - done_before
        if done <= 0:
            return ""
        left = len(self._run.design.cells) - self._n_settled()
        minutes = (now - started) / done * left / 60
        return f", about {max(1, round(minutes))} min left"

    def _n_settled(self) -> int:
        results = self._run.results_dir
        outcomes = (outcome_of(results, cell.id) for cell in self._run.design.cells)
        return sum(o is not None and o["outcome"] == "proven" for o in outcomes)
