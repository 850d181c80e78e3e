"""Options of serving engines: what vLLM and Dynamo are started with, and how they are loaded.

Names follow vLLM's command line and its ``KVTransferConfig``.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le, Lt

from kvroad.errors import UserError
from kvroad.study.allowed import (
    Count,
    Flag,
    HostPath,
    OneOf,
    Plain,
    Text,
    Tolerance,
    Whole,
    matches,
    must,
)
from kvroad.study.kinds import ENGINES
from kvroad.study.setting import cell, free, section

__all__ = ["AGGREGATED", "HostServing", "ServingOptions", "check_serving"]

# The transport of an engine that serves alone: nothing is transferred.
AGGREGATED = "none"
# What the plan sets itself: a second value would contradict it without a word.
_PLANNED_ARGUMENTS = (
    *("--model", "--served-model-name", "--host", "--port", "--tensor-parallel-size", "-tp"),
    *("--block-size", "--dtype", "--max-model-len", "--max-num-seqs", "--enforce-eager"),
    *("--max-num-batched-tokens", "--gpu-memory-utilization", "--kv-cache-memory-bytes"),
    *("--attention-backend", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *("--kv-transfer-config", "--disaggregation-mode", "--connector"),
)
_Version = Annotated[Text, matches(r"\d+\.\d+(\.\w+)*", "is no version, such as 0.23.0")]
_Argument = Annotated[
    Text,
    must(
        lambda word: word.partition("=")[0] not in _PLANNED_ARGUMENTS,
        "is set by the plan; use the field of that name, of engine, workload or host",
    ),
]
_UNPLANNED = must(
    lambda config: not {"num_threads", "enable_cross_layers_blocks"} & set(config),
    "has a key that the plan sets; use engine.num_threads or engine.serving.cross_layer_blocks",
)


@section
class ServingOptions:
    """Options of one prefill and one decode engine of vLLM, and of the load on them."""

    vllm_version: _Version | None = cell("another one is refused; null: any", default=None)
    dynamo_version: _Version | None = cell("shown beside what is found; null: any", default=None)
    aiperf_version: _Version | None = cell("shown beside what is found; null: any", default=None)
    output_tokens: Annotated[Whole, Ge(2)] = cell("tokens that each request asks for", default=256)
    max_model_len: Count | None = cell("vLLM's `--max-model-len`", default=None)
    max_num_seqs: Count | None = cell("vLLM's `--max-num-seqs`", default=None)
    max_num_batched_tokens: Count | None = cell("vLLM's `--max-num-batched-tokens`", default=None)
    enforce_eager: Flag = cell("vLLM's `--enforce-eager`", default=False)
    gpu_memory_utilization: Annotated[Tolerance, Le(1)] | None = cell(
        "vLLM's `--gpu-memory-utilization`", default=None
    )
    kv_cache_memory_bytes: Count | None = cell("vLLM's `--kv-cache-memory-bytes`", default=None)
    attention_backend: Text | None = cell("vLLM's `--attention-backend`", default=None)
    kv_connector: Text = cell("of vLLM's `KVTransferConfig`", default="NixlConnector")
    kv_buffer_device: Text | None = cell(
        "`cpu`: through the host; null: the platform's", default=None
    )
    packed_kv: Flag = cell("K and V of a block in one descriptor, as in vLLM 0.31", default=False)
    cross_layer_blocks: Flag = cell(
        "vLLM 0.23: all layers in one block; V1 model runner", default=False
    )
    kv_cache_layout: Text | None = cell("newer vLLM: `VLLM_KV_CACHE_LAYOUT`", default=None)
    extra_args: list[_Argument] = cell("further words for the engines", default_factory=list)
    extra_config: Annotated[Plain, _UNPLANNED] = cell(
        "further keys of `kv_connector_extra_config`", default_factory=dict
    )
    tool: Annotated[Text, OneOf(("aiperf", "vllm_bench", "kvroad"))] = cell(
        "load generator; `kvroad`: requests that the driver sends itself", default="aiperf"
    )
    failed_share_at_most: Annotated[Tolerance, Lt(1)] = free(
        "share of failed requests above which a cell is refused; they never count", default=0.0
    )
    probe_tokens: Count = free("prompt of the first request, which must transfer", default=512)
    log_interval_s: Count = cell("vLLM's `VLLM_LOG_STATS_INTERVAL`", default=5)
    decode_after_s: Tolerance | None = free("after prefill; null: once that is ready", default=None)
    check_cache: Flag = free("a plug-in compares the KV blocks of that request", default=True)


@section
class HostServing:
    """Where a host has the engines; ``{home}`` is the home folder there."""

    python: HostPath | None = free("of the engines' environment; null: the agent's", default=None)
    aiperf: HostPath = free("program of the load generator", default="aiperf")
    model: Text | None = free("folder of the weights; null: `model.repository`", default=None)


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
