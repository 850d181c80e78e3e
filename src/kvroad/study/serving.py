"""Options of serving engines: what vLLM and Dynamo are started with, and how they are loaded.

Names follow vLLM's command line and its ``KVTransferConfig``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvroad.errors import UserError, nearest
from kvroad.study.kinds import ENGINES

__all__ = ["AGGREGATED", "HostServing", "ServingOptions", "check_serving"]

# The transport of an engine that serves alone: nothing is transferred.
AGGREGATED = "none"
_TOOLS = ("aiperf", "vllm_bench", "kvroad")
# What the plan sets itself: a second value would contradict it without a word.
_OWN_ARGUMENTS = (
    *("--model", "--served-model-name", "--host", "--port", "--tensor-parallel-size", "-tp"),
    *("--block-size", "--dtype", "--max-model-len", "--max-num-seqs", "--enforce-eager"),
    *("--max-num-batched-tokens", "--gpu-memory-utilization", "--kv-cache-memory-bytes"),
    *("--attention-backend", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *("--kv-transfer-config", "--disaggregation-mode", "--connector"),
)
_OWN_CONFIG = ("num_threads", "enable_cross_layers_blocks")
_VERSION = re.compile(r"\d+\.\d+(\.\w+)*")


@dataclass(frozen=True)
class ServingOptions:
    """Options of one prefill and one decode engine of vLLM, and of the load on them.

    Parameters
    ----------
    vllm_version, dynamo_version, aiperf_version
        What the host must have; None: whatever it has. A launch with another vLLM than
        asked for is refused.
    packed_kv
        Whether K and V of a block lie in one descriptor, as in vLLM 0.31, or apart, as in 0.23.
    cross_layer_blocks
        vLLM 0.23: blocks of all layers in one (``enable_cross_layers_blocks``); it takes
        effect under the V1 model runner only, which this chooses too.
    kv_cache_layout
        Newer vLLM: ``VLLM_KV_CACHE_LAYOUT``.
    extra_args
        Further words of the engines' command line, as they are.
    extra_config
        Further keys of ``kv_connector_extra_config``.
    tool
        Load generator: ``aiperf``, ``vllm_bench``, or ``kvroad``: requests that the driver sends
        itself, for hosts where nothing more can be installed.
    decode_after_s
        Seconds after which decode starts though prefill is not ready yet; None: once it is.
    failed_share_at_most
        Share of failed requests above which a cell is refused; failed ones never count.
    probe_tokens
        Prompt of the request that must move decode's transfer count before anything else.
    check_cache
        Whether a plug-in in both engines digests the KV blocks of that request: a launch whose
        pulled blocks are not those of prefill is refused.
    """

    vllm_version: str | None = None
    dynamo_version: str | None = None
    aiperf_version: str | None = None
    output_tokens: int = 256
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    attention_backend: str | None = None
    kv_connector: str = "NixlConnector"
    kv_buffer_device: str | None = None
    packed_kv: bool = False
    cross_layer_blocks: bool = False
    kv_cache_layout: str | None = None
    extra_args: list[str] = field(default_factory=list)
    extra_config: dict[str, Any] = field(default_factory=dict)
    tool: str = "aiperf"
    failed_share_at_most: float = 0.0
    probe_tokens: int = 512
    log_interval_s: int = 5
    decode_after_s: float | None = None
    check_cache: bool = True


@dataclass(frozen=True)
class HostServing:
    """Where a host has the engines; ``{home}`` is the home folder there.

    Parameters
    ----------
    python
        Interpreter of the engines' environment; None: the agent's.
    aiperf
        Program of the load generator's environment.
    model
        Folder of the weights and the tokenizer; None: the model's ``repository``.
    """

    python: str | None = None
    aiperf: str = "aiperf"
    model: str | None = None


def check_serving(options: ServingOptions | None, engine: str, transports: list[str]) -> None:
    """Raise :class:`UserError` for the first option that cannot be meant."""
    if not ENGINES[engine].serves:
        if options is not None:
            raise UserError(f"engine.serving: engine {engine} serves nothing; leave it null")
        if AGGREGATED in transports:
            serving = [kind.name for kind in ENGINES.values() if kind.serves]
            raise UserError(
                f"transport: {AGGREGATED} is one engine that serves alone; it needs "
                f"engine={' or engine='.join(serving)}"
            )
        return
    if options is None:
        raise UserError(f"engine.serving has no value: engine {engine} needs its options")
    _check_numbers(options)
    if options.tool not in _TOOLS:
        hint = nearest(options.tool, _TOOLS)
        raise UserError(
            f"engine.serving.tool: {options.tool!r} is not allowed{hint} "
            f"(allowed: {', '.join(_TOOLS)})"
        )
    for name in ("vllm_version", "dynamo_version", "aiperf_version"):
        version = getattr(options, name)
        if version is not None and not _VERSION.fullmatch(version):
            raise UserError(f"engine.serving.{name}: {version!r} is no version, such as 0.23.0")
    _check_extra(options.extra_args, options.extra_config)


def _check_numbers(options: ServingOptions) -> None:
    least = {
        "output_tokens": 2,
        "max_model_len": 1,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "kv_cache_memory_bytes": 1,
        "probe_tokens": 1,
        "log_interval_s": 1,
    }
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            where = f"engine.serving.{name}"
            raise UserError(f"{where}: {value} is too small; allowed is {smallest} or more")
    gap_s = options.decode_after_s
    if gap_s is not None and not 0 <= gap_s < math.inf:
        raise UserError(f"engine.serving.decode_after_s: {gap_s} is not allowed; 0 or more is")
    for name, most in (("failed_share_at_most", 0.999), ("gpu_memory_utilization", 1.0)):
        share = getattr(options, name)
        if share is not None and not 0 <= share <= most:
            raise UserError(f"engine.serving.{name}: {share} is not a share from 0 to {most:g}")


def _check_extra(words: list[str], config: Mapping[str, Any]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if name in _OWN_ARGUMENTS:
            raise UserError(
                f"engine.serving.extra_args: {name} is set by the plan; "
                "use the field of that name, of engine, workload or host"
            )
    for name in config:
        if name in _OWN_CONFIG:
            raise UserError(
                f"engine.serving.extra_config: {name} is set by the plan; use engine.num_threads "
                "or engine.serving.cross_layer_blocks"
            )
