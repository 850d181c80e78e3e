"""The load on serving engines: it checks them, drives them, keeps what they and it say.

It travels to the host with the plan and stands alone there: standard library only.
"""

from __future__ import annotations

from typing import TypedDict

__all__ = ["DriverConfig", "LoadRequest"]


class DriverConfig(TypedDict):
    """What ``driver.json`` tells of a launch.

    ``tool`` generates the load; ``engine_ranks`` processes of decode each count a transfer for
    every request; ``probe_tokens`` is the prompt of the first one.
    """

    model: str
    tool: str
    seed: int
    probe_tokens: int
    engine_ranks: int
    log_interval_s: int
    checks_cache: bool
    start_timeout_s: float


class LoadRequest(TypedDict):
    """One phase as the agent asks for it.

    ``is_own``: the driver sends the requests itself, so that their bytes can be told;
    ``descriptors`` and ``pull_bytes`` are what one pull is to move, for who reads the files.
    """

    cell: str
    phase: str
    is_own: bool
    prompt_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    seed: int
    timeout_s: float
    descriptors: int
    pull_bytes: int
