"""Values of a study that cannot be meant, refused in one line before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from kvroad.errors import UserError, nearest
from kvroad.evidence.redact import redact_env
from kvroad.study.arms import arm_labels, ucx_tls_of, variant_settings
from kvroad.study.fields import Engine, Host, HostSide, Model, Study, Workload
from kvroad.study.kinds import CONNECTIONS, ENGINES
from kvroad.study.kv_layout import pull_layout
from kvroad.study.serving import AGGREGATED, check_serving
from kvroad.study.sides import SIDES, is_split, side_host, single_hosts

__all__ = ["UCX_ALIASES", "UCX_TRANSPORTS", "check_ucx_tls", "validate", "validate_hosts"]

# Names and aliases that UCX 1.23 takes in UCX_TLS (tests compare them with the library's own).
# fmt: off
UCX_TRANSPORTS = frozenset({
    "self", "tcp", "posix", "sysv", "xpmem", "knem", "cma",
    "rc_verbs", "rc_mlx5", "rc_gda", "dc_mlx5", "ud_verbs", "ud_mlx5", "gga_mlx5", "srd",
    "cuda_copy", "cuda_ipc", "gdr_copy", "rocm_copy", "rocm_ipc", "rocm_gdr",
    "ze_copy", "ze_ipc", "ze_gdr", "gaudi_gdr", "ugni_smsg", "ugni_udt", "ugni_rdma",
})
UCX_ALIASES = frozenset({
    "all", "mm", "sm", "shm", "ib", "ud", "ud_v", "ud_x", "rc", "rc_v", "rc_x", "dc", "dc_x",
    "gga", "ugni", "cuda", "rocm", "ze",
})
# fmt: on


def check_ucx_tls(entries: list[str], where: str) -> None:
    r"""Refuse what UCX would only warn of: an empty list or a transport that does not exist.

    A leading ``^`` in the first entry negates the list, ``\`` before a name rules out its alias.
    """
    if not entries:
        raise UserError(f"{where} is empty: name at least one UCX transport, such as [cma,tcp]")
    for index, entry in enumerate(entries):
        name = entry.removeprefix("^") if index == 0 else entry
        known = UCX_TRANSPORTS | UCX_ALIASES
        if name.startswith("\\"):
            name, known = name[1:], UCX_TRANSPORTS
        if (name := name.removesuffix(":aux")) not in known:
            words = sorted(known)
            raise UserError(
                f"{where}: {entry!r} is not a UCX transport{nearest(name, words)} "
                f"(allowed: {', '.join(words)})"
            )


def _sees_cuda(entries: list[str]) -> bool:
    names = {entry.lstrip("^\\").removesuffix(":aux") for entry in entries}
    if entries[0].startswith("^"):
        return not names & {"cuda", "cuda_copy"}
    return bool(names & {"all", "cuda", "cuda_copy"})


_ONE_OF: dict[str, Iterable[str]] = {
    "retry": ("unproven", "none"),
    "host.connection": CONNECTIONS,
    "engine.name": ENGINES,
    "engine.cells_per_launch": ("one", "all"),
    "engine.operation": ("read", "write"),
    "engine.memory": ("DRAM", "VRAM"),
    "engine.block_order": ("fresh", "fragmented"),
}
_MOST_PORT = 65535
_AT_LEAST: dict[str, int] = {
    "seed": 0,
    "engine.tensor_parallel_size": 1,
    "engine.rank_pairs": 1,
    "engine.num_threads": 0,
    "engine.regions": 1,
    "engine.progress_delay_us": 0,
    "engine.poll_interval_us": 0,
    "engine.side_channel_port": 0,
    "workload.block_tokens": 1,
    "workload.warmup_pulls": 1,
    "workload.pulls": 1,
    "workload.concurrency": 1,
    "workload.pulls_in_flight": 1,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 1,
    "model.num_key_value_heads": 1,
    "model.head_dim": 1,
    "model.sliding_window": 1,
    "model.global_head_dim": 1,
    "model.num_global_key_value_heads": 1,
    "model.kv_lora_rank": 1,
    "model.qk_rope_head_dim": 1,
    "host.lease_s": 5,
    "host.lock_timeout_s": 0,
    "host.price_per_hour": 0,
    "road.not_carried_at_most": 0,
    "road.idle_bytes_per_s": 0,
}
_ABOVE_ZERO = (
    "engine.start_timeout_s",
    "engine.phase_timeout_s",
    "engine.stop_timeout_s",
    "host.connect_timeout_s",
    "claims.alpha",
    "road.carried_at_least",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FREE_TEXT = re.compile(r"claims\.quoted|.*\.(description|source)$|overrides")


def validate(study: Study) -> None:
    """Raise :class:`UserError`, in one line, for the first value that cannot be meant."""
    _check_text(study)
    check_serving(study.engine.serving, study.engine.name, list(study.transports))
    _check_values(study)
    _check_transports(study)
    _check_host(study.host)
    _check_model(study.model)
    _check_memory(study, study.engine)
    for variant in study.variants:
        engine, workload = variant_settings(study, variant)
        try:
            check_serving(engine.serving, engine.name, list(study.transports))
            _check_values(replace(study, engine=engine, workload=workload))
            _check_memory(study, engine)
            _check_layout(study, engine, workload)
        except UserError as error:
            raise UserError(f"variant {variant}: {error}") from None
    _check_arms(study)


def validate_hosts(study: Study) -> None:
    """Raise :class:`UserError` where the hosts of a study cannot share its blocks evenly."""
    hosts = study.hosts
    if not hosts:
        return
    names = [one.name for host in hosts for one in single_hosts(host)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"host: two hosts are named {name!r}; set host.OPTION.name")
    kinds = {host.name: CONNECTIONS[host.connection] for host in hosts}
    by_hand = [name for name, kind in kinds.items() if kind.is_by_hand]
    if by_hand:
        raise UserError(f"host: {by_hand[0]} is reached by hand and needs a study of its own")
    if len({kind.is_allocated_in_job for kind in kinds.values()}) == 2:
        raise UserError("host: nodes that a job allocates and other hosts need a study each")
    step = 2 * len(hosts)
    if study.launches % step:
        raise UserError(
            f"launches: {study.launches} is not allowed; on {len(hosts)} hosts a multiple of "
            f"{step} gives each of them an even number of blocks"
        )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _check_text(study: Study) -> None:
    names = [("name", study.name), ("session", study.session), ("host.name", study.host.name)]
    names += [("transport", n) for n in study.transports] + [("variant", n) for n in study.variants]
    for where, name in names:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{where}: {name!r} becomes part of a file name; "
                "allowed are letters, digits, '.', '_' and '-', the first a letter or digit"
            )
    for path, value in _leaves(asdict(study), ""):
        if isinstance(value, str) and not value.isprintable() and not _FREE_TEXT.match(path):
            raise UserError(f"{path}: {value!r} holds a line break or another control character")


def _check_values(study: Study) -> None:
    for path, allowed in _ONE_OF.items():
        _check_choice(path, attrgetter(path)(study), allowed)
    for path, least in _AT_LEAST.items():
        value = attrgetter(path)(study)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise UserError(f"{path}: {value} is too small; allowed is {least} or more")
    for path in _ABOVE_ZERO:
        value = attrgetter(path)(study)
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{path}: {value} is not allowed; it must be above 0")
    _check_shares(study)
    if study.launches < 2 or study.launches % 2:
        raise UserError(
            f"launches: {study.launches} is not allowed; "
            "an even number, 2 or more, lets every arm go first equally often"
        )
    _check_prompt_tokens(study.prompt_tokens)
    if study.engine.rank_pairs > study.engine.tensor_parallel_size:
        raise UserError(
            f"engine.rank_pairs: {study.engine.rank_pairs} is more than the ranks there are "
            f"(engine.tensor_parallel_size={study.engine.tensor_parallel_size})"
        )
    # A port each for the rank pairs, from the first on.
    highest = _MOST_PORT - study.engine.rank_pairs + 1
    if study.engine.side_channel_port > highest:
        raise UserError(
            f"engine.side_channel_port: {study.engine.side_channel_port} is too large; "
            f"allowed is 0 to {highest} with engine.rank_pairs={study.engine.rank_pairs}"
        )


def _check_choice(path: str, value: str, allowed: Iterable[str]) -> None:
    if value not in (allowed := list(allowed)):
        hint = nearest(value, allowed)
        raise UserError(f"{path}: {value!r} is not allowed{hint} (allowed: {', '.join(allowed)})")


def _check_shares(study: Study) -> None:
    shares = {f"claims.margins.{m}": share for m, share in study.claims.margins.items()}
    shares["claims.alpha"] = study.claims.alpha
    for path, share in shares.items():
        if not 0 < share < 1:
            raise UserError(f"{path}: {share} is not a share; allowed is above 0 and below 1")
    if not study.road.not_carried_at_most < study.road.carried_at_least <= 1:
        raise UserError(
            f"road.carried_at_least: {study.road.carried_at_least} is not allowed; it must be "
            f"above road.not_carried_at_most={study.road.not_carried_at_most} and at most 1"
        )


def _check_prompt_tokens(lengths: list[int], where: str = "prompt_tokens") -> None:
    if not lengths:
        raise UserError(f"{where} is empty: name at least one length, such as [4096]")
    for length in lengths:
        if length < 1:
            raise UserError(f"{where}: {length} is too small; allowed is 1 or more")
        if lengths.count(length) > 1:
            raise UserError(f"{where}: {length} is named twice; once is enough")


def _check_transports(study: Study) -> None:
    for name, transport in study.transports.items():
        if name == AGGREGATED:
            continue
        if not transport.roads:
            raise UserError(f"transport.{name}.roads is empty: name the roads that prove it")
        for road in transport.roads:
            _check_choice(f"transport.{name}.roads", road, sorted(UCX_TRANSPORTS))
        for counter in transport.counters:
            _check_choice(f"transport.{name}.counters", counter, ["interface", "nic", "nvlink"])
        if transport.link_layer is not None:
            layers = ["Ethernet", "InfiniBand"]
            _check_choice(f"transport.{name}.link_layer", transport.link_layer, layers)
        check_ucx_tls(transport.ucx_tls, f"transport.{name}.ucx_tls")
        _check_env(f"transport.{name}.env", transport.env)
    for name, override in study.host.transports.items():
        if override.ucx_tls is not None:
            check_ucx_tls(override.ucx_tls, f"host.transports.{name}.ucx_tls")
        _check_env(f"host.transports.{name}.env", override.env)
        nominal = override.nominal_gb_per_s
        if nominal is not None and not (math.isfinite(nominal) and nominal > 0):
            where = f"host.transports.{name}.nominal_gb_per_s"
            raise UserError(f"{where}: {nominal} is not allowed; it must be above 0")
    for name, variant in study.variants.items():
        _check_env(f"variant.{name}.env", variant.env)
    _check_env("engine.env", study.engine.env)
    _check_env("host.env", study.host.env)


def _check_env(where: str, env: Mapping[str, str]) -> None:
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            raise UserError(
                f"{where}: {name!r} is not the name of an environment variable; "
                "allowed are letters, digits and '_', the first not a digit"
            )
    for name, value in env.items():
        if redact_env({name: value})[name] != value:
            raise UserError(
                f"{where}.{name} looks like a secret, which would end up in plans and reports: "
                "export it on the host, in the file that host.source names"
            )
    if "UCX_TLS" in env:
        raise UserError(
            f"{where}.UCX_TLS belongs to the transport: set transport.<name>.ucx_tls or, "
            "for one host, host.transports.<name>.ucx_tls"
        )


# Names that reach ssh_config, its Match exec and ProxyCommand: nothing a shell would act on.
_REACHED = {
    "address": (re.compile(r"\w[\w.:%-]*"), "letters, digits and . : % _ -"),
    "user": (re.compile(r"\w[\w.@+-]*"), "letters, digits and . @ + _ -"),
    "bind_address": (re.compile(r"\w[\w.:%-]*|::"), "an address of the host"),
}


def _check_host(host: Host) -> None:
    for side in SIDES:
        name = getattr(host, side).name
        if name is not None and not _NAME.fullmatch(name):
            raise UserError(f"host.{side}.name: {name!r} becomes part of a file name")
    if not is_split(host):
        _check_one_host(host, "host")
        return
    halves = {side: side_host(host, side) for side in SIDES}
    for side, half in halves.items():
        told = getattr(host, side)
        _check_one_host(half, f"host.{side}" if told != HostSide() else "host")
    if len({half.name for half in halves.values()}) == 1:
        raise UserError(f"host.prefill.name and host.decode.name are both {host.prefill.name!r}")
    if CONNECTIONS[host.connection].is_by_hand:
        allowed = ", ".join(kind.name for kind in CONNECTIONS.values() if not kind.is_by_hand)
        raise UserError(f"host.connection: two hosts by hand cannot keep step; allowed: {allowed}")


def _check_one_host(host: Host, where: str) -> None:
    CONNECTIONS[host.connection].check(host, where)
    if host.port is not None and not 1 <= host.port <= _MOST_PORT:
        size = "large" if host.port > 1 else "small"
        raise UserError(f"{where}.port: {host.port} is too {size}; allowed is 1 to {_MOST_PORT}")
    for path, (pattern, allowed) in _REACHED.items():
        value = getattr(host, path)
        if value is not None and not pattern.fullmatch(value):
            raise UserError(f"{where}.{path}: {value!r} is not allowed (allowed: {allowed})")
    for path in ("identity_file", "python", "work_dir", "source"):
        value = getattr(host, path)
        if value is not None and (not value.strip() or value.startswith("-")):
            raise UserError(f"{where}.{path}: {value!r} is not a path; not empty, no '-' in front")
    for path in ("interfaces", "rdma_devices"):
        for device in getattr(host, path):
            if not re.fullmatch(r"[A-Za-z0-9][\w.@:-]*", device, re.ASCII):
                raise UserError(f"{where}.{path}: {device!r} is not the name of a device")
    for gpu in host.gpus:
        if gpu < 0 or host.gpus.count(gpu) > 1:
            raise UserError(f"{where}.gpus: {gpu} is negative or named twice")


def _check_model(model: Model) -> None:
    if model.layer_types is None:
        return
    for kind in model.layer_types:
        _check_choice("model.layer_types", kind, ["full_attention", "sliding_attention"])
    if len(model.layer_types) != model.num_hidden_layers:
        raise UserError(
            f"model.layer_types: {len(model.layer_types)} entries for "
            f"model.num_hidden_layers={model.num_hidden_layers}; there must be one for each layer"
        )
    if "sliding_attention" in model.layer_types and model.sliding_window is None:
        raise UserError("model.sliding_window is missing: layer_types has sliding_attention")


def _check_memory(study: Study, engine: Engine) -> None:
    if engine.memory != "VRAM":
        return
    if not all(side_host(study.host, side).gpus for side in SIDES):
        raise UserError("engine.memory: VRAM needs host.gpus, such as host.gpus=[0,1]")
    for name in study.transports:
        if name != AGGREGATED and not _sees_cuda(entries := ucx_tls_of(study, name)):
            raise UserError(
                f"transport.{name}.ucx_tls: UCX sees no GPU memory without cuda_copy; "
                f"set transport.{name}.ucx_tls=[{','.join([*entries, 'cuda_copy'])}]"
            )


def _check_layout(study: Study, engine: Engine, workload: Workload) -> None:
    ENGINES[engine.name].check(engine)
    for prompt_tokens in study.prompt_tokens:
        pull_layout(study.model, engine, workload, prompt_tokens)


def _check_arms(study: Study) -> None:
    for arm in study.arms or []:
        _check_choice("arms", arm, arm_labels(replace(study, arms=None)))
    if study.arms == []:
        raise UserError("arms is empty: leave it null for every transport in every variant")
    arms = arm_labels(study)
    for arm, lengths in study.prompt_tokens_of.items():
        known = arm_labels(replace(study, arms=None))
        # Of a transport that is left out this time; a slip of the pen is told.
        if arm not in known and not nearest(arm, known):
            continue
        _check_choice("prompt_tokens_of", arm, known)
        _check_prompt_tokens(lengths, f"prompt_tokens_of.{arm}")
        for length in lengths:
            _check_choice(f"prompt_tokens_of.{arm}", str(length), map(str, study.prompt_tokens))
    for group, chosen in (("transport", study.transports), ("variant", study.variants)):
        if not chosen:
            raise UserError(f"{group} is empty: name at least one")
    _check_choice("baseline", study.baseline, arms)
    for pair in study.contrasts or []:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(f"contrasts: {pair} is not a pair of two arms, such as [tcp,shm]")
        for arm in pair:
            _check_choice("contrasts", arm, arms)
    if study.contrasts == []:
        raise UserError("contrasts is empty: leave it null to compare every arm with the baseline")
