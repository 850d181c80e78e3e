"""What a cell's name is a hash of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from kvroad.study.arms import Arm
from kvroad.study.fields import Host, Study, Transport
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = [
    "IDENTITY_FIELDS",
    "MEASUREMENT_VERSION",
    "NOT_IDENTITY_FIELDS",
    "common_identity",
    "identity_hash",
]

# Raised by hand when measuring itself changes, so that older cells are measured anew.
MEASUREMENT_VERSION = 1


# Every field of a resolved study is in exactly one of these two sets. A field of the first
# changes which cells are asked for; one of the second never measures anything again.
IDENTITY_FIELDS = {
    "engine": {
        "name",
        "cells_per_launch",
        "operation",
        "memory",
        "tensor_parallel_size",
        "rank_pairs",
        "num_threads",
        "block_order",
        "regions",
        "progress_delay_us",
        "poll_interval_us",
        "nixl_version",
        "env",
    },
    "host": {
        "name",
        "gpus",
        "interfaces",
        "rdma_devices",
        "env",
        "transports",
        "prefill",
        "decode",
    },
    "serving": {
        "vllm_version",
        "dynamo_version",
        "aiperf_version",
        "output_tokens",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "attention_backend",
        "kv_connector",
        "kv_buffer_device",
        "packed_kv",
        "cross_layer_blocks",
        "kv_cache_layout",
        "extra_args",
        "extra_config",
        "tool",
        "log_interval_s",
    },
    "side": {"name", "gpus", "interfaces", "rdma_devices"},
    "model": {
        "name",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "dtype",
        "sliding_window",
        "layer_types",
        "global_head_dim",
        "num_global_key_value_heads",
        "kv_lora_rank",
        "qk_rope_head_dim",
    },
    "study": {"prompt_tokens", "seed", "session"},
    "transport": {"roads", "ucx_tls", "env", "counters", "link_layer", "backend"},
    "variant": {"engine", "workload", "env", "serving"},
    "workload": {"block_tokens", "warmup_pulls", "pulls", "concurrency", "pulls_in_flight"},
}


NOT_IDENTITY_FIELDS = {
    "engine": {
        "start_timeout_s",
        "phase_timeout_s",
        "stop_timeout_s",
        "side_channel_port",
        "serving",  # has a section of its own
    },
    "host": {
        "connection",
        "address",
        "user",
        "port",
        "identity_file",
        "python",
        "work_dir",
        "source",
        "bind_address",
        "strict",
        "connect_timeout_s",
        "lease_s",
        "lock_timeout_s",
        "price_per_hour",
        "serving",
    },
    "serving": {"failed_share_at_most", "probe_tokens", "decode_after_s", "check_cache"},
    "side": {
        "address",
        "user",
        "port",
        "identity_file",
        "python",
        "work_dir",
        "source",
        "bind_address",
    },
    "model": {"source", "repository"},
    "study": {
        "name",
        "host",
        "engine",
        "transports",
        "variants",
        "model",
        "workload",
        "claims",
        "launches",
        "arms",
        "baseline",
        "contrasts",
        "prompt_tokens_of",
        "retry",
        "road",
        "tracking",
        "overrides",
        "hosts",
    },
    "transport": {"description"},
    "variant": {"description"},
    "workload": set[str](),
}


def common_identity(study: Study, arm: Arm) -> dict[str, Any]:
    """Return the identity of an arm's cells; each sets its own prompt tokens and block."""
    identity: dict[str, Any] = {
        "measurement_version": MEASUREMENT_VERSION,
        "arm": {"transport": arm.transport_name, "variant": arm.variant_name},
        "transport": _transport_identity(arm.transport),
        "environment": arm.environment,
        "engine": _chosen("engine", arm.engine),
        "workload": _chosen("workload", arm.workload),
        "model": _chosen("model", study.model),
        "host": _host_identity(study.host),
        "prompt_tokens": 0,
        "block": 0,
        "seed": study.seed,
        "session": study.session,
    }
    if arm.engine.serving is not None:
        identity["serving"] = _chosen("serving", arm.engine.serving)
    return identity


def _transport_identity(transport: Transport) -> dict[str, Any]:
    # Cells had names before there was a second backend.
    identity = _chosen("transport", transport)
    return {k: v for k, v in identity.items() if (k, v) != ("backend", "ucx")}


def _host_identity(host: Host) -> dict[str, Any]:
    # What env and transports say is in the arm's environment already.
    folded = ("env", "transports", *SIDES)
    identity = {k: v for k, v in _chosen("host", host).items() if k not in folded}
    if is_split(host):
        identity |= {side: _chosen("side", side_host(host, side)) for side in SIDES}
    return identity


def _chosen(section: str, value: Any) -> dict[str, Any]:
    chosen = IDENTITY_FIELDS[section]
    return {key: item for key, item in asdict(value).items() if key in chosen}


def identity_hash(identity: dict[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 of an identity as canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
