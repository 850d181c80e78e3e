"""The posting loop: pulls in flight, each with its own block ids, a row for every one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from .binding import nixl_errors
from .memory import PoolShape, Words

__all__ = ["PhaseRequest", "Poster", "PullRow", "Slot"]


class PullRow(TypedDict):
    """One pull in ``pulls-RANK.jsonl``; what NIXL does not tell is None."""

    cell: str
    phase: str
    pull: int
    rank: int
    operation: str
    in_flight: int
    descriptors_planned: int
    descriptors_given: int
    bytes_planned: int
    start_mono_ns: int
    wall_us: float | None
    state: str
    descriptors_moved: int | None
    bytes_moved: int | None
    post_us: int | None
    xfer_us: int | None
    error: str | None
    verified: bool | None


@dataclass(frozen=True)
class PhaseRequest:
    """One phase as the agent asks for it."""

    cell: str
    phase: str
    n_blocks: int
    pulls: int
    in_flight: int
    seed: int


@dataclass
class Slot:
    """Blocks that one pull in flight owns, and what it last brought."""

    local: Words
    number: int
    remote: Words | None = None


@dataclass
class _Active:
    number: int
    slot: Slot
    remote_slot: int
    handle: Any
    n_given: int
    started_ns: int
    wall_us: float | None = None
    state: str = "PROC"


@dataclass
class Poster:
    """Posts transfers between two prepared descriptor lists.

    Parameters
    ----------
    agent
        The NIXL agent of this side.
    operation
        ``READ`` or ``WRITE``.
    local_list, remote_list
        Handles of the prepared lists; index = region * blocks + block.
    before_pull, after_pull
        Called outside the timed stretch with the blocks on this side and on the other:
        spoil, then check, the memory that is written.
    """

    agent: Any
    shape: PoolShape
    remote_shape: PoolShape
    operation: str
    local_list: Any
    remote_list: Any
    rank: int
    block_order: str
    poll_interval_s: float
    before_pull: Callable[[Words, Words], None]
    after_pull: Callable[[Words, Words], bool]
    barrier: Callable[[str], None]
    progress: Callable[[int], None]
    finished: tuple[Words, Words] | None = None

    def run(self, request: PhaseRequest) -> list[PullRow]:
        """Run one phase and return its rows in the order of completion."""
        rng = np.random.default_rng(request.seed)
        slots, remote = self._slots(request, rng)
        free, free_remote = list(range(len(slots))), list(range(len(remote)))
        active: list[_Active] = []
        rows: list[PullRow] = []
        landed: dict[int, tuple[PullRow, Words, Words]] = {}
        posted = 0
        is_alone = request.in_flight == 1
        if not is_alone:
            for slot, blocks in zip(slots, remote):
                self.before_pull(slot.local, blocks)
        while len(rows) < request.pulls:
            while posted < request.pulls and len(active) < request.in_flight:
                slot = slots[free.pop(0)]
                chosen = free_remote.pop(int(rng.integers(len(free_remote))))
                slot.remote = remote[chosen]
                if is_alone:
                    self.before_pull(slot.local, slot.remote)
                    self.barrier(f"{request.cell}/{request.phase}/{posted}")
                active.append(self._post(posted, slot, chosen))
                posted += 1
            for pull in self._poll(active):
                active.remove(pull)
                row = self._row(pull, request)
                rows.append(row)
                # A read lands in this side's slot, a write in the other's.
                place = pull.slot.number if self.operation == "READ" else pull.remote_slot
                landed[place] = (row, pull.slot.local, remote[pull.remote_slot])
                if is_alone:
                    row["verified"] = self.after_pull(pull.slot.local, remote[pull.remote_slot])
                free.append(pull.slot.number)
                free_remote.append(pull.remote_slot)
                self.progress(len(rows))
        if not is_alone:
            self._verify_last(landed)
        chosen = sorted(landed)[int(rng.integers(len(landed)))]
        self.finished = landed[chosen][1:]
        return rows

    def _verify_last(self, landed: dict[int, tuple[PullRow, Words, Words]]) -> None:
        """Compare what each slot holds once all have ended.

        Looking at memory earlier would take time from the pulls still in flight; so the
        last pull into each slot is verified, and earlier ones stay unverified.
        """
        for row, local, remote in landed.values():
            row["verified"] = self.after_pull(local, remote)

    def _slots(
        self, request: PhaseRequest, rng: np.random.Generator
    ) -> tuple[list[Slot], list[Words]]:
        """Cut each side's blocks into slots: in order, or shuffled as in an aged pool."""
        local = self._cut(self.shape.n_blocks, request.n_blocks, rng)
        remote = self._cut(self.remote_shape.n_blocks, request.n_blocks, rng)
        return [Slot(blocks, number) for number, blocks in enumerate(local)], remote

    def _cut(self, pool: int, n_blocks: int, rng: np.random.Generator) -> list[Words]:
        ids = np.arange(pool, dtype=np.uint64)
        if self.block_order == "fragmented":
            rng.shuffle(ids)
        n_slots = pool // n_blocks
        return [ids[i * n_blocks : (i + 1) * n_blocks] for i in range(n_slots)]

    def _post(self, number: int, slot: Slot, remote_slot: int) -> _Active:
        assert slot.remote is not None
        local = self.shape.indices(slot.local)
        remote = self.remote_shape.indices(slot.remote)
        note = f"{self.rank}/{number}".encode()
        started = time.monotonic_ns()
        handle = self.agent.make_prepped_xfer(
            self.operation, self.local_list, local, self.remote_list, remote, note
        )
        pull = _Active(number, slot, remote_slot, handle, int(local.size), started)
        pull.state = self.agent.transfer(handle)
        return pull

    def _poll(self, active: list[_Active]) -> list[_Active]:
        """Return the pulls that have ended; sleep first unless one ended in its post."""
        done = [p for p in active if p.state != "PROC"]
        if not done:
            if self.poll_interval_s > 0:
                time.sleep(self.poll_interval_s)
            for pull in active:
                pull.state = self.agent.check_xfer_state(pull.handle)
            done = [p for p in active if p.state != "PROC"]
        for pull in done:
            pull.wall_us = (time.monotonic_ns() - pull.started_ns) / 1000
        return done

    def _row(self, pull: _Active, request: PhaseRequest) -> PullRow:
        slot = pull.slot
        assert slot.remote is not None
        planned = request.n_blocks * self.shape.n_tensors * self.shape.halves
        row: PullRow = {
            "cell": request.cell,
            "phase": request.phase,
            "pull": pull.number,
            "rank": self.rank,
            "operation": self.operation.lower(),
            "in_flight": request.in_flight,
            "descriptors_planned": planned,
            "descriptors_given": pull.n_given,
            "bytes_planned": planned * self.shape.descriptor_bytes,
            "start_mono_ns": pull.started_ns,
            "wall_us": pull.wall_us,
            "state": pull.state,
            "descriptors_moved": None,
            "bytes_moved": None,
            "post_us": None,
            "xfer_us": None,
            "error": None if pull.state == "DONE" else f"state {pull.state}",
            "verified": None,
        }
        try:
            telemetry = self.agent.get_xfer_telemetry(pull.handle)
            row["descriptors_moved"] = int(telemetry.descCount)
            row["bytes_moved"] = int(telemetry.totalBytes)
            row["post_us"] = int(telemetry.postDuration)
            row["xfer_us"] = int(telemetry.xferDuration)
        except nixl_errors() as error:
            row["error"] = f"{type(error).__name__}: {error}"
        pull.handle.release()
        return row
