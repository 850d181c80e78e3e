"""The typed study: what a resolved configuration says, each field declared once.

A declaration is the type with what it allows, one line of help, and whether the field is part
of a cell's identity; docs/configuration.md is made of them.
"""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le

from kvroad.study.allowed import (
    Address,
    BindAddress,
    Changes,
    Count,
    Devices,
    Env,
    FileName,
    Flag,
    FreeText,
    Gpus,
    HostPath,
    Lengths,
    Natural,
    Number,
    OneOf,
    Plain,
    Port,
    Positive,
    Share,
    Some,
    Text,
    Tolerance,
    User,
    Whole,
    must,
)
from kvroad.study.serving import SERVING_ENGINES, HostServing, ServingOptions
from kvroad.study.setting import elsewhere, identity, no_identity, section

__all__ = [
    "DTYPE_BYTES",
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
]

ENGINES = ("nixl", *SERVING_ENGINES)
CONNECTIONS = ("local", "ssh", "slurm", "hand")
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1}


@section
class Transport:
    """One transport: what UCX is told to use, and which roads count as it."""

    roads: list[Text] = identity("UCX transports, as its tables print them, that prove it")
    ucx_tls: list[Text] = identity("entries of `UCX_TLS`")
    env: Env = identity("environment of every engine process", default_factory=dict)
    counters: list[Annotated[Text, OneOf(("interface", "nic", "nvlink"))]] = identity(
        "byte counters that its payload moves; the others must stay still", default_factory=list
    )
    link_layer: Annotated[Text, OneOf(("Ethernet", "InfiniBand"))] | None = identity(
        "of the NIC, where the road alone does not name the transport", default=None
    )
    description: FreeText = no_identity("what it is", default="")


@section
class TransportOverride:
    """What a host says of a transport in place of the transport's own values."""

    ucx_tls: list[Text] | None = elsewhere("entries of `UCX_TLS` on this host", default=None)
    env: Env = elsewhere("environment of every engine process on this host", default_factory=dict)
    nominal_gb_per_s: Positive | None = no_identity(
        "what the link of one rank is sold as; it decides nothing", default=None
    )


@section
class Model:
    """Values of a model's Hugging Face ``config.json`` that shape its KV cache."""

    name: Text = identity("its name in tables")
    num_hidden_layers: Count = identity("layers")
    num_attention_heads: Count = identity("query heads")
    num_key_value_heads: Count = identity("heads of keys and values")
    head_dim: Count = identity("elements of a head")
    dtype: Annotated[Text, OneOf(DTYPE_BYTES)] = identity(
        "type of an element of the cache", default="bfloat16"
    )
    sliding_window: Count | None = identity(
        "tokens that a layer with sliding attention looks back", default=None
    )
    layer_types: list[Annotated[Text, OneOf(("full_attention", "sliding_attention"))]] | None = (
        identity("one for each layer of a hybrid model", default=None)
    )
    global_head_dim: Count | None = identity(
        "elements of a head in layers with full attention, if others", default=None
    )
    num_global_key_value_heads: Count | None = identity(
        "heads of keys and values in these layers, if others", default=None
    )
    kv_lora_rank: Count | None = identity("elements of the latent vector of MLA", default=None)
    qk_rope_head_dim: Count | None = identity("elements of the rotary key of MLA", default=None)
    source: FreeText = no_identity("where the values are from", default="")
    repository: Text | None = no_identity(
        "where serving engines get the weights, if the host has none", default=None
    )


@section
class Workload:
    """What is pulled: block size, warm-up, and how many pulls in each phase."""

    block_tokens: Count = identity("tokens of a block", default=64)
    warmup_pulls: Count = identity("kept and marked; the road is checked after them", default=2)
    pulls: Count = identity("pulls one at a time", default=8)
    concurrency: Count = identity("pulls held in flight in the last phase", default=4)
    pulls_in_flight: Count = identity("pulls of that phase in total", default=12)


@section
class Engine:
    """Options of the NIXL replay; names follow NIXL's and vLLM's own.

    Engines that serve have ``serving`` in addition, and take of the others
    ``tensor_parallel_size``, ``num_threads``, ``memory``, ``env`` and the time-outs.
    """

    name: Annotated[Text, OneOf(ENGINES)] = identity("the engine", default="nixl")
    cells_per_launch: Annotated[Text, OneOf(("one", "all"))] = identity(
        "fresh processes for every prompt length, or one start for all of them", default="one"
    )
    operation: Annotated[Text, OneOf(("read", "write"))] = identity(
        "`read`: decode pulls; `write`: prefill pushes", default="read"
    )
    memory: Annotated[Text, OneOf(("DRAM", "VRAM"))] = identity(
        "`VRAM` is that of `host.gpus`", default="DRAM"
    )
    tensor_parallel_size: Count = identity("how the KV heads are split", default=4)
    rank_pairs: Count = identity(
        "prefill and decode processes that pull at once; at most as many as ranks", default=1
    )
    num_threads: Natural = identity("NIXL's posting threads; vLLM's default is 4", default=4)
    block_order: Annotated[Text, OneOf(("fresh", "fragmented"))] = identity(
        "block ids in order, or as in a pool that has been in use", default="fresh"
    )
    regions: Count | None = identity(
        "contiguous regions that a pull's bytes lie in; null: in blocks", default=None
    )
    progress_delay_us: Natural = identity(
        "pause of NIXL's progress thread; 0: it spins on a core", default=0
    )
    poll_interval_us: Natural = identity("between looks at a pull in progress", default=100)
    nixl_version: Text | None = identity("NIXL to ask for; null: what the host has", default=None)
    side_channel_port: Natural = no_identity(
        "of the first rank, on the host of the passive half; 0: any free one", default=0
    )
    env: Env = identity("environment of every engine process", default_factory=dict)
    start_timeout_s: Positive = no_identity("until the engines are ready", default=120.0)
    phase_timeout_s: Positive = no_identity("until a phase of a cell is over", default=600.0)
    stop_timeout_s: Positive = no_identity("for the engines to end cleanly", default=20.0)
    serving: ServingOptions | None = elsewhere(
        "options of engines that serve; null for the replay", default=None
    )


@section
class Variant:
    """A named set of overrides on top of a transport."""

    description: FreeText = no_identity("what it is", default="")
    engine: Annotated[dict[str, Any], Changes(Engine)] = elsewhere(
        "fields of `engine` that it sets", default_factory=dict
    )
    workload: Annotated[dict[str, Any], Changes(Workload)] = elsewhere(
        "fields of `workload` that it sets", default_factory=dict
    )
    env: Env = elsewhere("environment of every engine process", default_factory=dict)
    serving: Annotated[dict[str, Any], Changes(ServingOptions)] = elsewhere(
        "fields of `engine.serving` that it sets", default_factory=dict
    )


# How the host of both halves, or of one, is reached.
_ADDRESS = "name or address, as in `~/.ssh/config`"
_USER = "login; null: as in `~/.ssh/config`"
_PORT = "port of SSH; null: as in `~/.ssh/config`"
_KEY = "private key; null: as in `~/.ssh/config`"
_PYTHON = "interpreter with NIXL; null: `python3`, here kvroad's own"
_WORK_DIR = "folder of the agent; null: `~/.kvroad`"
_SOURCE = "file that bash reads first: modules, libraries, tokens"
_BIND = "where the other half reaches the side channel"
_GPUS = "GPUs to use"
_INTERFACES = "interfaces whose bytes are counted for TCP"
_RDMA = "RDMA devices whose bytes are counted; empty: all that the host has"


@section
class HostSide:
    """What differs on the host of one half, where prefill and decode run on two hosts."""

    name: FileName | None = identity("null: `HOST-prefill`, `HOST-decode`", default=None)
    address: Address | None = no_identity(_ADDRESS, default=None, reaches=True)
    user: User | None = no_identity(_USER, default=None, reaches=True)
    port: Port | None = no_identity(_PORT, default=None, reaches=True)
    identity_file: HostPath | None = no_identity(_KEY, default=None, reaches=True)
    python: HostPath | None = no_identity(_PYTHON, default=None, reaches=True)
    work_dir: HostPath | None = no_identity(_WORK_DIR, default=None, reaches=True)
    source: HostPath | None = no_identity(_SOURCE, default=None, reaches=True)
    bind_address: BindAddress | None = no_identity(_BIND, default=None, reaches=True)
    gpus: Gpus | None = identity(_GPUS, default=None)
    interfaces: Devices | None = identity(_INTERFACES, default=None)
    rdma_devices: Devices | None = identity(_RDMA, default=None)


@section
class Host:
    """Where the engines run; on two hosts where ``prefill`` or ``decode`` says anything."""

    name: FileName = identity("in the name of every cell: one name for one machine")
    connection: Annotated[Text, OneOf(CONNECTIONS)] = no_identity(
        "how the agent gets there", default="local"
    )
    address: Address | None = no_identity(_ADDRESS, default=None, reaches=True)
    user: User | None = no_identity(_USER, default=None, reaches=True)
    port: Port | None = no_identity(_PORT, default=None, reaches=True)
    identity_file: HostPath | None = no_identity(_KEY, default=None, reaches=True)
    python: HostPath | None = no_identity(_PYTHON, default=None, reaches=True)
    work_dir: HostPath | None = no_identity(_WORK_DIR, default=None, reaches=True)
    source: HostPath | None = no_identity(_SOURCE, default=None, reaches=True)
    bind_address: BindAddress = no_identity(_BIND, default="127.0.0.1", reaches=True)
    gpus: Gpus = identity(_GPUS, default_factory=list)
    interfaces: Devices = identity(_INTERFACES, default_factory=list)
    rdma_devices: Devices = identity(_RDMA, default_factory=list)
    env: Env = elsewhere("environment of every engine process", default_factory=dict)
    transports: dict[Text, TransportOverride] = elsewhere(
        "what differs here for a transport, by its name", default_factory=dict
    )
    prefill: HostSide = elsewhere("what differs on the host of prefill", default_factory=HostSide)
    decode: HostSide = elsewhere("what differs on the host of decode", default_factory=HostSide)
    serving: HostServing = no_identity("where the serving engines are", default_factory=HostServing)
    strict: Flag = no_identity(
        "a transport that cannot be had stops the study in front", default=True, reaches=True
    )
    connect_timeout_s: Positive = no_identity(
        "for each step of a login", default=10.0, reaches=True
    )
    lease_s: Annotated[Number, Ge(5)] = no_identity(
        "within so many seconds of a lost connection the host is clean", default=20.0, reaches=True
    )
    lock_timeout_s: Tolerance = no_identity(
        "wait for somebody else's launch; 0: say whose it is and stop", default=0.0, reaches=True
    )
    price_per_hour: Tolerance | None = no_identity("what `kvroad plan` reckons with", default=None)


@section
class RoadTolerances:
    """When a byte counter says that a road carried the payload."""

    carried_at_least: Annotated[Positive, Le(1)] = no_identity(
        "share of the payload on a road that carried it", default=0.95
    )
    not_carried_at_most: Tolerance = no_identity(
        "share of the payload on a road that did not", default=0.05
    )
    idle_bytes_per_s: Tolerance = no_identity(
        "bytes per second of other traffic that are allowed for", default=2_000_000.0
    )


@section
class Claims:
    """When a difference counts, and what others published."""

    alpha: Share = no_identity("error rate of intervals and tests", default=0.05)
    margins: dict[Text, Share] = no_identity(
        "by metric: the share within which a difference is none", default_factory=dict
    )
    quoted: Plain | None = no_identity(
        "shown beside our results and never mixed with them", default=None
    )


@section
class Tracking:
    """Where MLflow logs the runs."""

    uri: Text = no_identity("`MLFLOW_TRACKING_URI` wins", default="sqlite:///mlflow.db")
    experiment: Text | None = no_identity("null: the study's name", default=None)


@section
class Study:
    """A resolved study; ``host`` is the first of ``hosts`` where there are several."""

    name: FileName = no_identity("of the study: `reports/NAME/`")
    host: Host = elsewhere("where the engines run")
    engine: Engine = elsewhere("what is run")
    transports: dict[FileName, Transport] = elsewhere("the transports to compare")
    variants: dict[FileName, Variant] = elsewhere("the variants of each")
    model: Model = elsewhere("the shape of the KV cache")
    workload: Workload = elsewhere("what is pulled")
    claims: Claims = no_identity("what counts as a difference")
    prompt_tokens: Lengths = identity("prompt lengths in tokens, each once")
    launches: Annotated[
        Whole,
        must(
            lambda number: number >= 2 and number % 2 == 0,
            "is not allowed; an even number, 2 or more, lets every arm go first equally often",
        ),
    ] = no_identity("times that each arm is launched; even")
    baseline: Text = no_identity("the arm that others are compared with; null: the first")
    arms: Some[Text] | None = no_identity(
        "some of them, such as `[tcp,shm+push]`; null: every transport and variant", default=None
    )
    contrasts: Some[list[Text]] | None = no_identity(
        "pairs of arms, `[[tcp,shm]]`; null: every arm against the baseline", default=None
    )
    prompt_tokens_of: dict[Text, Lengths] = no_identity(
        "an arm to some of the lengths: `{tcp: [4096]}`", default_factory=dict
    )
    seed: Natural = identity("of the order and of the block ids", default=1)
    session: FileName = identity("another name measures everything afresh", default="main")
    retry: Annotated[Text, OneOf(("unproven", "none"))] = no_identity(
        "measure again what was refused or failed, or leave it", default="unproven"
    )
    road: RoadTolerances = no_identity(
        "bounds of the byte witnesses", default_factory=RoadTolerances
    )
    tracking: Tracking = no_identity("where runs are logged", default_factory=Tracking)
    overrides: list[FreeText] = no_identity(
        "what was asked for beside the files", default_factory=list
    )
    hosts: list[Host] = no_identity("all of them, where there are several", default_factory=list)
