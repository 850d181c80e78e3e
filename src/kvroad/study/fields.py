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
from kvroad.study.kinds import BACKENDS, CONNECTIONS, COUNTERS, ENGINES
from kvroad.study.serving import HostServing, ServingOptions
from kvroad.study.setting import cell, cell_if_changed, free, inner, section

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

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1}


@section
class Transport:
    """One transport: what its backend is told to use, and which roads count as it."""

    roads: list[Text] = cell("roads that prove it, as the backend names them")
    ucx_tls: list[Text] = cell("entries of `UCX_TLS`", default_factory=list)
    env: Env = cell("environment of every engine process", default_factory=dict)
    counters: list[Annotated[Text, OneOf(COUNTERS)]] = cell(
        "byte counters that its payload moves; the others must stay still", default_factory=list
    )
    link_layer: Annotated[Text, OneOf(("Ethernet", "InfiniBand"))] | None = cell(
        "of the NIC, where the road alone does not name the transport", default=None
    )
    description: FreeText = free("what it is", default="")
    backend: Annotated[Text, OneOf(BACKENDS)] = cell_if_changed(
        "what moves the bytes under the connector", default="ucx"
    )


@section
class TransportOverride:
    """What a host says of a transport in place of the transport's own values."""

    ucx_tls: list[Text] | None = inner("entries of `UCX_TLS` on this host", default=None)
    env: Env = inner("environment of every engine process on this host", default_factory=dict)
    nominal_gb_per_s: Positive | None = free(
        "the link of one rank as sold; decides nothing", default=None
    )


@section
class Model:
    """Values of a model's Hugging Face ``config.json`` that shape its KV cache."""

    name: Text = cell("its name in tables")
    num_hidden_layers: Count = cell("layers")
    num_attention_heads: Count = cell("query heads")
    num_key_value_heads: Count = cell("heads of keys and values")
    head_dim: Count = cell("elements of a head")
    dtype: Annotated[Text, OneOf(DTYPE_BYTES)] = cell("of the cached elements", default="bfloat16")
    sliding_window: Count | None = cell("tokens that sliding attention looks back", default=None)
    layer_types: list[Annotated[Text, OneOf(("full_attention", "sliding_attention"))]] | None = (
        cell("one for each layer of a hybrid model", default=None)
    )
    global_head_dim: Count | None = cell("`head_dim` of full attention, if another", default=None)
    num_global_key_value_heads: Count | None = cell(
        "KV heads of full attention, if others", default=None
    )
    kv_lora_rank: Count | None = cell("elements of the latent vector of MLA", default=None)
    qk_rope_head_dim: Count | None = cell("elements of the rotary key of MLA", default=None)
    source: FreeText = free("where the values are from", default="")
    repository: Text | None = free("of the weights, where the host has none", default=None)


@section
class Workload:
    """What is pulled: block size, warm-up, and how many pulls in each phase."""

    block_tokens: Count = cell("tokens of a block", default=64)
    warmup_pulls: Count = cell("kept and marked; the road is checked after them", default=2)
    pulls: Count = cell("pulls one at a time", default=8)
    concurrency: Count = cell("pulls held in flight in the last phase", default=4)
    pulls_in_flight: Count = cell("pulls of that phase in total", default=12)


@section
class Engine:
    """Options of the NIXL replay; names follow NIXL's and vLLM's own.

    Engines that serve have ``serving`` in addition, and take of the others
    ``tensor_parallel_size``, ``num_threads``, ``memory``, ``env`` and the time-outs.
    """

    name: Annotated[Text, OneOf(ENGINES)] = cell("the engine", default="nixl")
    cells_per_launch: Annotated[Text, OneOf(("one", "all"))] = cell(
        "fresh processes for every prompt length, or one start for all of them", default="one"
    )
    operation: Annotated[Text, OneOf(("read", "write"))] = cell(
        "`read`: decode pulls; `write`: prefill pushes", default="read"
    )
    memory: Annotated[Text, OneOf(("DRAM", "VRAM"))] = cell(
        "`VRAM`: of `host.gpus`", default="DRAM"
    )
    tensor_parallel_size: Count = cell("how the KV heads are split", default=4)
    rank_pairs: Count = cell("pairs of processes that pull at once; at most the ranks", default=1)
    num_threads: Natural = cell("NIXL's posting threads; vLLM's default is 4", default=4)
    block_order: Annotated[Text, OneOf(("fresh", "fragmented"))] = cell(
        "block ids in order, or as in a pool that has been in use", default="fresh"
    )
    regions: Count | None = cell("contiguous regions of a pull; null: blocks", default=None)
    progress_delay_us: Natural = cell("pause of NIXL's progress thread; 0: it spins", default=0)
    poll_interval_us: Natural = cell("between looks at a pull in progress", default=100)
    nixl_version: Text | None = cell("NIXL to ask for; null: what the host has", default=None)
    side_channel_port: Natural = free("first port on the passive half's host; 0: any", default=0)
    env: Env = cell("environment of every engine process", default_factory=dict)
    start_timeout_s: Positive = free("until the engines are ready", default=120.0)
    phase_timeout_s: Positive = free("until a phase of a cell is over", default=600.0)
    stop_timeout_s: Positive = free("for the engines to end cleanly", default=20.0)
    serving: ServingOptions | None = inner(
        "of engines that serve; null for the replay", default=None
    )


@section
class Variant:
    """A named set of overrides on top of a transport."""

    description: FreeText = free("what it is", default="")
    engine: Annotated[dict[str, Any], Changes(Engine)] = inner(
        "fields that it sets", default_factory=dict
    )
    workload: Annotated[dict[str, Any], Changes(Workload)] = inner(
        "fields that it sets", default_factory=dict
    )
    env: Env = inner("environment of every engine process", default_factory=dict)
    serving: Annotated[dict[str, Any], Changes(ServingOptions)] = inner(
        "fields of `engine.serving` it sets", default_factory=dict
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

    name: FileName | None = cell("null: `HOST-prefill`, `HOST-decode`", default=None)
    address: Address | None = free(_ADDRESS, default=None, reaches=True)
    user: User | None = free(_USER, default=None, reaches=True)
    port: Port | None = free(_PORT, default=None, reaches=True)
    identity_file: HostPath | None = free(_KEY, default=None, reaches=True)
    python: HostPath | None = free(_PYTHON, default=None, reaches=True)
    work_dir: HostPath | None = free(_WORK_DIR, default=None, reaches=True)
    source: HostPath | None = free(_SOURCE, default=None, reaches=True)
    bind_address: BindAddress | None = free(_BIND, default=None, reaches=True)
    gpus: Gpus | None = cell(_GPUS, default=None)
    interfaces: Devices | None = cell(_INTERFACES, default=None)
    rdma_devices: Devices | None = cell(_RDMA, default=None)


@section
class Host:
    """Where the engines run; on two hosts where ``prefill`` or ``decode`` says anything."""

    name: FileName = cell("in the name of every cell: one name for one machine")
    connection: Annotated[Text, OneOf(CONNECTIONS)] = free("how it is reached", default="local")
    address: Address | None = free(_ADDRESS, default=None, reaches=True)
    user: User | None = free(_USER, default=None, reaches=True)
    port: Port | None = free(_PORT, default=None, reaches=True)
    identity_file: HostPath | None = free(_KEY, default=None, reaches=True)
    python: HostPath | None = free(_PYTHON, default=None, reaches=True)
    work_dir: HostPath | None = free(_WORK_DIR, default=None, reaches=True)
    source: HostPath | None = free(_SOURCE, default=None, reaches=True)
    bind_address: BindAddress = free(_BIND, default="127.0.0.1", reaches=True)
    gpus: Gpus = cell(_GPUS, default_factory=list)
    interfaces: Devices = cell(_INTERFACES, default_factory=list)
    rdma_devices: Devices = cell(_RDMA, default_factory=list)
    env: Env = inner("environment of every engine process", default_factory=dict)
    transports: dict[Text, TransportOverride] = inner(
        "what differs for a transport here", default_factory=dict
    )
    prefill: HostSide = inner("what differs on the host of prefill", default_factory=HostSide)
    decode: HostSide = inner("what differs on the host of decode", default_factory=HostSide)
    serving: HostServing = free("where the serving engines are", default_factory=HostServing)
    strict: Flag = free("a transport that is missing stops the study", default=True, reaches=True)
    connect_timeout_s: Positive = free("for each step of a login", default=10.0, reaches=True)
    lease_s: Annotated[Number, Ge(5)] = free(
        "within so many seconds of a lost connection the host is clean", default=20.0, reaches=True
    )
    lock_timeout_s: Tolerance = free(
        "wait for somebody else's launch; 0: say whose it is and stop", default=0.0, reaches=True
    )
    price_per_hour: Tolerance | None = free("what `kvroad plan` reckons with", default=None)


@section
class RoadTolerances:
    """When a byte counter says that a road carried the payload."""

    carried_at_least: Annotated[Positive, Le(1)] = free(
        "share on a road that carried it", default=0.95
    )
    not_carried_at_most: Tolerance = free("share on a road that did not", default=0.05)
    idle_bytes_per_s: Tolerance = free("other traffic that is allowed for", default=2_000_000.0)


@section
class Claims:
    """When a difference counts, and what others published."""

    alpha: Share = free("error rate of intervals and tests", default=0.05)
    margins: dict[Text, Share] = free(
        "by metric: a share that counts as none", default_factory=dict
    )
    quoted: Plain | None = free("shown beside our results and never mixed with them", default=None)


@section
class Tracking:
    """Where MLflow logs the runs."""

    uri: Text = free("`MLFLOW_TRACKING_URI` wins", default="sqlite:///mlflow.db")
    experiment: Text | None = free("null: the study's name", default=None)


@section
class Study:
    """A resolved study; ``host`` is the first of ``hosts`` where there are several."""

    name: FileName = free("of the study: `reports/NAME/`")
    host: Host = inner("where the engines run")
    engine: Engine = inner("what is run")
    transports: dict[FileName, Transport] = inner("the transports to compare")
    variants: dict[FileName, Variant] = inner("the variants of each")
    model: Model = inner("the shape of the KV cache")
    workload: Workload = inner("what is pulled")
    claims: Claims = free("what counts as a difference")
    prompt_tokens: Lengths = cell("prompt lengths in tokens, each once")
    launches: Annotated[
        Whole,
        must(
            lambda number: number >= 2 and number % 2 == 0,
            "is not allowed; an even number, 2 or more, lets every arm go first equally often",
        ),
    ] = free("times that each arm is launched; even")
    baseline: Text = free("the arm that others are compared with; null: the first")
    arms: Some[Text] | None = free(
        "some of them, such as `[tcp,shm+push]`; null: all", default=None
    )
    contrasts: Some[list[Text]] | None = free(
        "such as `[[tcp,shm]]`; null: each with the baseline", default=None
    )
    prompt_tokens_of: dict[Text, Lengths] = free(
        "of some arms: `{tcp: [4096]}`", default_factory=dict
    )
    seed: Natural = cell("of the order and of the block ids", default=1)
    session: FileName = cell("another name measures everything afresh", default="main")
    retry: Annotated[Text, OneOf(("unproven", "none"))] = free(
        "measure again what was refused or failed, or leave it", default="unproven"
    )
    road: RoadTolerances = free("bounds of the byte witnesses", default_factory=RoadTolerances)
    tracking: Tracking = free("where runs are logged", default_factory=Tracking)
    overrides: list[FreeText] = free("what was asked for beside the files", default_factory=list)
    hosts: list[Host] = free("all of them, where there are several", default_factory=list)
