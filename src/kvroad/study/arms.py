"""Arms: a transport in a variant, and what they resolve to on a host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvroad.errors import UserError
from kvroad.study.fields import Engine, Study, Transport, TransportOverride, Workload
from kvroad.study.kinds import BACKENDS
from kvroad.study.serving import AGGREGATED

__all__ = [
    "Arm",
    "arm_label",
    "arm_labels",
    "arms_of",
    "lengths_of",
    "ucx_tls_of",
    "variant_settings",
]

_DEFAULT_VARIANT = "blocks"


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


def ucx_tls_of(study: Study, transport: str) -> list[str]:
    """Return the entries of ``UCX_TLS`` for a transport on this study's host."""
    override = study.host.transports.get(transport, TransportOverride())
    return override.ucx_tls or study.transports[transport].ucx_tls


@dataclass(frozen=True)
class Arm:
    """A transport and a variant, with what they resolve to on the study's host."""

    label: str
    transport_name: str
    variant_name: str
    transport: Transport
    engine: Engine
    workload: Workload
    environment: dict[str, str]


def arms_of(study: Study) -> list[Arm]:
    """Return the arms of a study as they are on its host, variant by variant."""
    chosen = arm_labels(study)
    return [
        _arm(study, transport, variant)
        for variant in study.variants
        for transport in study.transports
        if arm_label(transport, variant) in chosen
    ]


def _arm(study: Study, transport_name: str, variant_name: str) -> Arm:
    transport, variant = study.transports[transport_name], study.variants[variant_name]
    override = study.host.transports.get(transport_name, TransportOverride())
    engine, workload = variant_settings(study, variant_name)
    backend = BACKENDS[transport.backend]
    on_host = replace(transport, ucx_tls=ucx_tls_of(study, transport_name))
    environment = {
        **backend.environment(on_host, engine),
        **study.engine.env,
        **study.host.env,
        **transport.env,
        **override.env,
        **variant.env,
    }
    if transport_name == AGGREGATED:
        dropped = backend.variables(environment)
        environment = {k: v for k, v in environment.items() if k not in dropped}
    return Arm(
        label=arm_label(transport_name, variant_name),
        transport_name=transport_name,
        variant_name=variant_name,
        transport=transport,
        engine=engine,
        workload=workload,
        environment=dict(sorted(environment.items())),
    )
