"""The typed study: what a resolved configuration says, checked field by field."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, get_type_hints

from kvroad.errors import UserError
from kvroad.serving import HostServing, ServingOptions

__all__ = [
    "FIELD_OF_GROUP",
    "HOW_TO_REACH",
    "PUBLISHED",
    "SIDES",
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
    "arm_label",
    "arm_labels",
    "config_keys",
    "hosts_of",
    "is_split",
    "lengths_of",
    "on_host",
    "resolved",
    "side_host",
    "single_hosts",
    "study_slug",
    "ucx_tls_of",
    "variant_settings",
    "without_password",
]


@dataclass(frozen=True)
class Transport:
    """One asked-for transport: how UCX is told to use it and which roads count as it.

    Parameters
    ----------
    roads
        Roads (UCX transport names as protocol tables print them) that prove it.
    ucx_tls
        Entries of ``UCX_TLS``.
    env
        Further environment variables of every engine process.
    counters
        Kinds of byte counter that a payload on this road moves
        (``interface``, ``nic``, ``nvlink``); the others must stay still.
    link_layer
        ``Ethernet`` or ``InfiniBand`` where the road alone does not name the transport.
    """

    roads: list[str]
    ucx_tls: list[str]
    env: dict[str, str] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)
    link_layer: str | None = None
    description: str = ""


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
_DEFAULT_VARIANT = "blocks"


@cache
def config_keys() -> dict[str, Any]:
    """Return the top-level keys of the configuration and the type of each."""
    hints = get_type_hints(Study)
    hints.pop("overrides")
    hints.pop("hosts")
    for group, name in FIELD_OF_GROUP.items():
        hints[group] = hints.pop(name)
    return {"study": str, **hints}


def arm_label(transport: str, variant: str) -> str:
    """Return the name of an arm: the transport alone where the variant is ``blocks``."""
    return transport if variant == _DEFAULT_VARIANT else f"{transport}+{variant}"


def arm_labels(study: Study) -> list[str]:
    """Return the labels of all arms: every transport in every variant, in the order asked for."""
    labels = [arm_label(t, v) for v in study.variants for t in study.transports]
    return labels if study.arms is None else [arm for arm in labels if arm in study.arms]


def lengths_of(study: Study, arm: str) -> list[int]:
    """Return the prompt lengths that an arm is measured at."""
    return study.prompt_tokens_of.get(arm, study.prompt_tokens)


def variant_settings(study: Study, variant: str) -> tuple[Engine, Workload]:
    """Return engine and workload as the named variant runs them."""
    chosen = study.variants[variant]
    engine = replace(study.engine, **chosen.engine)
    if chosen.serving:
        if engine.serving is None:
            raise UserError(f"variant.{variant}.serving: engine {engine.name} serves nothing")
        engine = replace(engine, serving=replace(engine.serving, **chosen.serving))
    return engine, replace(study.workload, **chosen.workload)


def hosts_of(study: Study) -> list[Host]:
    """Return the hosts of a study, between which its blocks are dealt out in turn."""
    return study.hosts or [study.host]


def on_host(study: Study, name: str) -> Study:
    """Return the study as it is on one of its hosts; raises KeyError for an unknown name."""
    host = {host.name: host for host in hosts_of(study)}[name]
    return replace(study, host=host, hosts=[])


SIDES = ("prefill", "decode")


def is_split(host: Host) -> bool:
    """Return whether prefill and decode run on two hosts."""
    return any(value is not None for side in SIDES for value in _told(host, side).values())


def side_host(host: Host, side: str) -> Host:
    """Return the host of one half: the host itself where both halves run on it."""
    if not is_split(host):
        return host
    told = {"name": f"{host.name}-{side}", **_told(host, side)}
    return replace(host, prefill=HostSide(), decode=HostSide(), **told)


def single_hosts(host: Host) -> list[Host]:
    """Return the one host, or the two of its halves in the order of their names."""
    if not is_split(host):
        return [host]
    return sorted((side_host(host, side) for side in SIDES), key=lambda half: half.name)


def _told(host: Host, side: str) -> dict[str, Any]:
    values: dict[str, Any] = vars(getattr(host, side))
    return {key: value for key, value in values.items() if value is not None}


def ucx_tls_of(study: Study, transport: str) -> list[str]:
    """Return the entries of ``UCX_TLS`` for a transport on this study's host."""
    override = study.host.transports.get(transport)
    if override is not None and override.ucx_tls is not None:
        return override.ucx_tls
    return study.transports[transport].ucx_tls


def without_password(text: str) -> str:
    """Return the text with the password of every URI in it masked."""
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def resolved(study: Study) -> dict[str, Any]:
    """Return the study as plain dicts and lists; a password in the tracking URI is masked."""
    plain = asdict(study)
    plain["tracking"]["uri"] = without_password(study.tracking.uri)
    if not study.hosts:
        del plain["hosts"]
    return plain


HOW_TO_REACH = (
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
)
# The folder among those of reports that holds the committed ones; no study has its name.
PUBLISHED = "published"
_CHANGES_NO_RESULT = re.compile(
    rf"\+*(study=|tracking[.=]|host\.([\w-]+\.){{0,2}}({'|'.join(HOW_TO_REACH)})=|"
    r"host\.([\w-]+\.){0,2}serving[.=])"
)


def study_slug(study: Study) -> str:
    """Return a folder name: the study's, then ``+`` and each override in alphabetical order.

    ``study=`` is the name itself; tracking and the way to a host change no result: none of
    them is spelled out. A short hash follows where a character was replaced, the name was
    cut, or ``+`` is ambiguous.
    """
    told = sorted(o for o in study.overrides if not _CHANGES_NO_RESULT.match(o))
    exact = "+".join([study.name, *told])
    safe = re.sub(r"[^A-Za-z0-9._+=,\[\]-]", "_", exact)
    if safe == exact and len(safe) <= 100 and not any("+" in o for o in told):
        return safe
    return f"{safe[:89]}-{hashlib.sha256(exact.encode()).hexdigest()[:10]}"
