"""Goes to the host beside the replay: its phases named ``bare-…`` are a loop of NIXL calls alone.

Same process, agent, registered pool, prepared lists, blocks and waiting as the phases of the
replay that they take turns with; nothing else than post, poll, telemetry, release.
"""

import sys
import time

import numpy as np
from replay import __main__ as program
from replay.pulls import Poster

_run = Poster.run


def _bare(self, request):
    rng = np.random.default_rng(request.seed)
    slots, remote = self._slots(request, rng)
    pairs = list(zip(slots, remote))
    lists = [
        (self.shape.indices(slot.local), self.remote_shape.indices(blocks))
        for slot, blocks in pairs
    ]
    agent, rows, active, posted = self.agent, [], [], 0
    while len(rows) < request.pulls:
        while posted < request.pulls and len(active) < request.in_flight:
            local, there = lists[posted % len(lists)]
            started = time.monotonic_ns()
            handle = agent.make_prepped_xfer(
                self.operation, self.local_list, local, self.remote_list, there, b""
            )
            active.append([posted, handle, agent.transfer(handle), started])
            posted += 1
        if all(pull[2] == "PROC" for pull in active):
            time.sleep(self.poll_interval_s)
            for pull in active:
                pull[2] = agent.check_xfer_state(pull[1])
        for pull in [p for p in active if p[2] != "PROC"]:
            active.remove(pull)
            number, handle, state, started = pull
            ended = time.monotonic_ns()
            told = agent.get_xfer_telemetry(handle)
            handle.release()
            rows.append(
                {
                    "cell": request.cell,
                    "phase": request.phase,
                    "pull": number,
                    "in_flight": request.in_flight,
                    "state": state,
                    "start_mono_ns": started,
                    "wall_us": (ended - started) / 1000,
                    "post_us": int(told.postDuration),
                    "xfer_us": int(told.xferDuration),
                }
            )
    # What the program checks after each phase: a pull whose bytes have to be right.
    self.finished = (slots[0].local, remote[0])
    return rows


def _either(self, request):
    run = _bare if request.phase.startswith("bare-") else _run
    start = time.monotonic_ns()
    rows = run(self, request)
    for row in rows:
        row["phase_us"] = (time.monotonic_ns() - start) / 1000
    return rows


Poster.run = _either
sys.exit(program.main())
