"""Values of a study that cannot be meant together, refused in one line before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvroad.errors import UserError, nearest
from kvroad.study.allowed import MOST_PORT, not_among
from kvroad.study.arms import arm_labels, ucx_tls_of, variant_settings
from kvroad.study.fields import Engine, Host, HostSide, Model, Study, Workload
from kvroad.study.kinds import BACKENDS, CONNECTIONS, ENGINES
from kvroad.study.kv_layout import pull_layout
from kvroad.study.name import PUBLISHED
from kvroad.study.serving import AGGREGATED, check_serving
from kvroad.study.sides import SIDES, is_split, side_host, single_hosts
from kvroad.study.typed import typed
from kvroad.study.ucx import check_ucx_tls

__all__ = ["validate", "validate_hosts"]


def validate(study: Study) -> None:
    """Raise :class:`UserError`, in one line, for the first value that cannot be meant."""
    typed(Study, study)
    if study.name == PUBLISHED:
        raise UserError(
            f"name: {PUBLISHED!r} is the folder of published reports; name it otherwise"
        )
    _check_tolerances(study)
    _check_transports(study)
    _check_host(study.host)
    _check_model(study.model)
    _check_engine(study, study.engine)
    for variant in study.variants:
        engine, workload = variant_settings(study, variant)
        try:
            _check_engine(study, engine)
            _check_layout(study, engine, workload)
        except UserError as error:
            raise UserError(f"variant {variant}: {error}") from None
    _check_arms(study)


def validate_hosts(study: Study) -> None:
    """Raise :class:`UserError` where the hosts of a study cannot share its blocks evenly."""
    hosts = study.hosts
    if not hosts:
        return
    names = [half.name for host in hosts for half in single_hosts(host)]
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


def _check_engine(study: Study, engine: Engine) -> None:
    check_serving(engine.serving, engine.name, list(study.transports))
    if engine.rank_pairs > engine.tensor_parallel_size:
        raise UserError(
            f"engine.rank_pairs: {engine.rank_pairs} is more than the ranks there are "
            f"(engine.tensor_parallel_size={engine.tensor_parallel_size})"
        )
    # A port each for the rank pairs, from the first on.
    highest = MOST_PORT - engine.rank_pairs + 1
    if engine.side_channel_port > highest:
        raise UserError(
            f"engine.side_channel_port: {engine.side_channel_port} is too large; "
            f"allowed is 0 to {highest} with engine.rank_pairs={engine.rank_pairs}"
        )
    if engine.memory == "VRAM":
        _check_gpu_memory(study)


def _check_choice(path: str, value: str, allowed: Iterable[str]) -> None:
    if value not in (words := list(allowed)):
        raise UserError(f"{path}: {value!r} {not_among(value, words)}")


def _check_tolerances(study: Study) -> None:
    if not study.road.not_carried_at_most < study.road.carried_at_least:
        raise UserError(
            f"road.carried_at_least: {study.road.carried_at_least} is not allowed; it must be "
            f"above road.not_carried_at_most={study.road.not_carried_at_most}"
        )


def _check_transports(study: Study) -> None:
    for name, transport in study.transports.items():
        if name == AGGREGATED:
            continue
        if not transport.roads:
            raise UserError(f"transport.{name}.roads is empty: name the roads that prove it")
        BACKENDS[transport.backend].check(f"transport.{name}", transport, "DRAM")
    for name, override in study.host.transports.items():
        if override.ucx_tls is not None:
            check_ucx_tls(override.ucx_tls, f"host.transports.{name}.ucx_tls")


def _check_host(host: Host) -> None:
    halves = {side: side_host(host, side) for side in SIDES}
    for side, half in halves.items():
        where = f"host.{side}" if getattr(host, side) != HostSide() else "host"
        CONNECTIONS[half.connection].check(half, where)
    if not is_split(host):
        return
    if len({half.name for half in halves.values()}) == 1:
        raise UserError(f"host.prefill.name and host.decode.name are both {host.prefill.name!r}")
    if CONNECTIONS[host.connection].is_by_hand:
        allowed = ", ".join(kind.name for kind in CONNECTIONS.values() if not kind.is_by_hand)
        raise UserError(f"host.connection: two hosts by hand cannot keep step; allowed: {allowed}")


def _check_model(model: Model) -> None:
    if model.layer_types is None:
        return
    if len(model.layer_types) != model.num_hidden_layers:
        raise UserError(
            f"model.layer_types: {len(model.layer_types)} entries for "
            f"model.num_hidden_layers={model.num_hidden_layers}; there must be one for each layer"
        )
    if "sliding_attention" in model.layer_types and model.sliding_window is None:
        raise UserError("model.sliding_window is missing: layer_types has sliding_attention")


def _check_gpu_memory(study: Study) -> None:
    if not all(side_host(study.host, side).gpus for side in SIDES):
        raise UserError("engine.memory: VRAM needs host.gpus, such as host.gpus=[0,1]")
    for name, transport in study.transports.items():
        if name != AGGREGATED:
            on_host = replace(transport, ucx_tls=ucx_tls_of(study, name))
            BACKENDS[transport.backend].check(f"transport.{name}", on_host, "VRAM")


def _check_layout(study: Study, engine: Engine, workload: Workload) -> None:
    ENGINES[engine.name].check(engine)
    for prompt_tokens in study.prompt_tokens:
        pull_layout(study.model, engine, workload, prompt_tokens)


def _check_arms(study: Study) -> None:
    arms, known = arm_labels(study), arm_labels(replace(study, arms=None))
    for arm in study.arms or []:
        _check_choice("arms", arm, known)
    for arm, lengths in study.prompt_tokens_of.items():
        # An arm of a transport that is left out this time is no mistake; a misspelt one is.
        if arm not in known and not nearest(arm, known):
            continue
        _check_choice("prompt_tokens_of", arm, known)
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
