"""The typed study: what a resolved configuration says."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

from kvroad.study.serving import HostServing, ServingOptions

__all__ = [
    "FIELD_OF_GROUP",
    "Claims",
    "Engine",
    "Host",
    "HostSide",
    "Model",
    "RoadTolerances",
    "Study",
    "Tracking",
    "Transport",
    "TransportOverride",
    "Variant",
    "Workload",
    "config_keys",
]


@dataclass(frozen=True)
class Transport:
    """One asked-for transport: how its backend is told to use it and which roads count as it.

    Parameters
    ----------
    roads
        Roads that prove it, as the backend names them: UCX's transports in protocol tables.
    ucx_tls
        Entries of ``UCX_TLS``.
    env
        Further environment variables of every engine process.
    counters
        Kinds of byte counter that a payload on this road moves
        (``interface``, ``nic``, ``nvlink``); the others must stay still.
    link_layer
        ``Ethernet`` or ``InfiniBand`` where the road alone does not name the transport.
    backend
        What moves the bytes under the connector.
    """

    roads: list[str]
    ucx_tls: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)
    link_layer: str | None = None
    description: str = ""
    backend: str = "ucx"


@dataclass(frozen=True)
class TransportOverride:
    """What a host says about a transport in place of the transport's own defaults.

    ``nominal_gb_per_s`` is what the link of one rank is sold as; it decides nothing.
    """

    ucx_tls: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    nominal_gb_per_s: float | None = None


@dataclass(frozen=True)
class Variant:
    """A named set of overrides on top of a transport."""

    description: str = ""
    engine: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    serving: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """Values of a model's Hugging Face ``config.json`` that shape its KV cache.

    ``repository`` is where serving engines get the weights unless the host has a folder.
    """

    name: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    global_head_dim: int | None = None
    num_global_key_value_heads: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    source: str = ""
    repository: str | None = None


@dataclass(frozen=True)
class Workload:
    """What is pulled: block size, warm-up, and how many pulls in each phase."""

    block_tokens: int = 64
    warmup_pulls: int = 2
    pulls: int = 8
    concurrency: int = 4
    pulls_in_flight: int = 12


@dataclass(frozen=True)
class Engine:
    """Options of the NIXL replay; names follow NIXL's and vLLM's own.

    ``serving`` is there for engines that serve; of the others they take
    ``tensor_parallel_size``, ``num_threads``, ``memory``, ``env`` and the time-outs.
    """

    name: str = "nixl"
    cells_per_launch: str = "one"
    operation: str = "read"
    memory: str = "DRAM"
    tensor_parallel_size: int = 4
    rank_pairs: int = 1
    num_threads: int = 4
    block_order: str = "fresh"
    regions: int | None = None
    progress_delay_us: int = 0
    poll_interval_us: int = 100
    nixl_version: str | None = None
    side_channel_port: int = 0
    env: dict[str, str] = field(default_factory=dict)
    start_timeout_s: float = 120.0
    phase_timeout_s: float = 600.0
    stop_timeout_s: float = 20.0
    serving: ServingOptions | None = None


@dataclass(frozen=True)
class HostSide:
    """What differs on the host of one half, where prefill and decode run on two hosts."""

    name: str | None = None
    address: str | None = None
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    python: str | None = None
    work_dir: str | None = None
    source: str | None = None
    bind_address: str | None = None
    gpus: list[int] | None = None
    interfaces: list[str] | None = None
    rdma_devices: list[str] | None = None


@dataclass(frozen=True)
class Host:
    """Where the engines run.

    Parameters
    ----------
    source
        File on the host that bash reads before the agent starts: modules, libraries, tokens.
    strict
        Whether a transport that the host cannot offer stops the study before it starts;
        otherwise it is launched, and the proof of its road refuses it.
    prefill, decode
        What differs on the host of that half; where one of them says anything, the two
        halves run on two hosts.
    """

    name: str
    connection: str = "local"
    address: str | None = None
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    python: str | None = None
    work_dir: str | None = None
    source: str | None = None
    bind_address: str = "127.0.0.1"
    gpus: list[int] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)
    rdma_devices: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    transports: dict[str, TransportOverride] = field(default_factory=dict)
    prefill: HostSide = field(default_factory=HostSide)
    decode: HostSide = field(default_factory=HostSide)
    serving: HostServing = field(default_factory=HostServing)
    strict: bool = True
    connect_timeout_s: float = 10.0
    lease_s: float = 20.0
    lock_timeout_s: float = 0.0
    price_per_hour: float | None = None


@dataclass(frozen=True)
class RoadTolerances:
    """Bounds of the byte witnesses, as shares of the payload and bytes per second."""

    carried_at_least: float = 0.95
    not_carried_at_most: float = 0.05
    idle_bytes_per_s: float = 2_000_000.0


@dataclass(frozen=True)
class Claims:
    """Equivalence margins per metric (shares), the error rate, and quoted results."""

    alpha: float = 0.05
    margins: dict[str, float] = field(default_factory=dict)
    quoted: dict[str, Any] | None = None


@dataclass(frozen=True)
class Tracking:
    """Where runs are logged; ``MLFLOW_TRACKING_URI`` wins over ``uri``."""

    uri: str = "sqlite:///mlflow.db"
    experiment: str | None = None


@dataclass(frozen=True)
class Study:
    """A resolved study.

    ``prompt_tokens_of`` maps an arm to those of ``prompt_tokens`` that it is measured at, where
    all of them would take too long.
    ``hosts`` are all of them where there are several; ``host`` is then the first.
    """

    name: str
    host: Host
    engine: Engine
    transports: dict[str, Transport]
    variants: dict[str, Variant]
    model: Model
    workload: Workload
    claims: Claims
    prompt_tokens: list[int]
    launches: int
    baseline: str
    arms: list[str] | None = None
    contrasts: list[list[str]] | None = None
    prompt_tokens_of: dict[str, list[int]] = field(default_factory=dict)
    seed: int = 1
    session: str = "main"
    retry: str = "unproven"
    road: RoadTolerances = field(default_factory=RoadTolerances)
    tracking: Tracking = field(default_factory=Tracking)
    overrides: list[str] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)


# Fields of a study whose configuration group, and so their key, has another name.
FIELD_OF_GROUP = {"transport": "transports", "variant": "variants"}


@cache
def config_keys() -> dict[str, Any]:
    """Return the top-level keys of the configuration and the type of each."""
    hints = get_type_hints(Study)
    hints.pop("overrides")
    hints.pop("hosts")
    for group, name in FIELD_OF_GROUP.items():
        hints[group] = hints.pop(name)
    return {"study": str, **hints}
