"""The NIXL replay: moves a KV cache as vLLM's connector does, without an engine.

The package is laid down on the host by a plan and run there with the host's Python; it
needs NIXL (which brings numpy) and nothing else.
"""

from __future__ import annotations

from typing import TypedDict

__all__ = ["ReplayConfig"]


class ReplayConfig(TypedDict):
    """What ``replay.json`` tells both halves of a launch.

    ``seed`` is of the pattern that prefill writes; ``pool_blocks`` are the blocks of one pool,
    ``gap_bytes`` lie unused behind each descriptor; GPUs are by rank.
    """

    operation: str
    memory: str
    num_threads: int
    progress_delay_us: int
    poll_interval_us: int
    block_order: str
    ranks: int
    seed: int
    n_tensors: int
    halves: int
    descriptor_bytes: int
    gap_bytes: int
    pool_blocks: int
    prefill_gpus: list[int]
    decode_gpus: list[int]
