"""Goes to the host beside the replay: some phases of it are a loop of NIXL calls alone.

Same process, agent, registered pool, prepared lists, blocks, notification and waiting as the
phases of the replay that they take turns with; in the timed stretch nothing else than post,
poll, telemetry, release. Phases ``bare-…`` do to the memory before and after a pull what the
replay does, so that it is in the same state; phases ``hot-…`` leave it alone.
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
    pairs = [(slot.local, blocks) for slot, blocks in zip(slots, remote)]
    lists = [(self.shape.indices(a), self.remote_shape.indices(b)) for a, b in pairs]
    agent, rows, active, posted = self.agent, [], [], 0
    is_hot, is_alone = request.phase.startswith("hot-"), request.in_flight == 1
    if not is_hot and not is_alone:
        for pair in pairs:
            self.before_pull(*pair)
    while len(rows) < request.pulls:
        while posted < request.pulls and len(active) < request.in_flight:
            if not is_hot and is_alone:
                self.before_pull(*pairs[posted % len(pairs)])
                self.barrier(f"{request.cell}/{request.phase}/{posted}")
            local, there = lists[posted % len(lists)]
            note = b"0/%d" % posted
            started = time.monotonic_ns()
            handle = agent.make_prepped_xfer(
                self.operation, self.local_list, local, self.remote_list, there, note
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
            if not is_hot and is_alone:
                self.after_pull(*pairs[number % len(pairs)])
    # What the program checks after each phase: a pull whose bytes have to be right.
    self.finished = pairs[0]
    return rows


def _either(self, request):
    run = _bare if request.phase.startswith(("bare-", "hot-")) else _run
    start = time.monotonic_ns()
    rows = run(self, request)
    for row in rows:
        row["phase_us"] = (time.monotonic_ns() - start) / 1000
    return rows


Poster.run = _either
sys.exit(program.main())
