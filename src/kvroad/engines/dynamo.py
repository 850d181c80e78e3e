"""Engine ``dynamo``: frontend, prefill and decode worker of Dynamo, without etcd or NATS.

Flags and variables as in Dynamo 1.3 (vLLM 0.23) and 1.6 (vLLM 0.31): ``--is-prefill-worker``
and its like are deprecated in the one and gone in the other, so the mode is always named.
"""

from __future__ import annotations

from kvroad.engines.serving import (
    DECODE,
    FRONTEND,
    PREFILL,
    Site,
    check_served,
    engine_environment,
    served_layout,
    serving_plan,
    vllm_options,
)
from kvroad.engines.serving_host import examine_serving
from kvroad.plan import Plan, Process
from kvroad.study.design import Cell, Launch
from kvroad.study.fields import Study
from kvroad.study.kinds import EngineKind

__all__ = ["KIND", "dynamo_plan"]

_MODES = {PREFILL: "prefill", DECODE: "decode"}


def dynamo_plan(study: Study, launch: Launch, cells: list[Cell], owner: str) -> Plan:
    """Return the plan of one launch; ``transport=none`` has one worker that serves alone."""
    site = Site(study, launch)
    servers = [_frontend(site), *(_worker(site, engine) for engine in site.engines)]
    ports = [FRONTEND, *site.engines]
    return serving_plan(site, cells, owner, servers, ports, lambda e: f"{_system(e)}/metrics")


def _system(engine: str) -> str:
    """Return the address of a worker's own server: health and metrics."""
    return "http://{bind}:{port:" + engine + "}"


def _shared(site: Site) -> dict[str, str]:
    """Return what all three processes must see the same of."""
    return {
        # Registrations of an earlier launch would be served: a fresh folder for each.
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": "{folder}/discovery",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_HTTP_HOST": "{bind}",
        "DYN_TCP_RPC_HOST": "{bind}",
        "DYN_SYSTEM_HOST": "{bind}",
        "DO_NOT_TRACK": "1",
    }


def _frontend(site: Site) -> Process:
    not_ucx = {k: v for k, v in site.arm.environment.items() if not k.startswith("UCX_")}
    return Process(
        name=FRONTEND,
        argv=[
            *(site.python, "-m", "dynamo.frontend"),
            *("--http-host", "{bind}", "--http-port", "{port:frontend}"),
        ],
        env={**_shared(site), **not_ucx},
        ready_url="http://{bind}:{port:frontend}/live",
        ready_timeout_s=site.engine.start_timeout_s,
    )


def _worker(site: Site, engine: str) -> Process:
    mode = [] if site.is_alone else ["--disaggregation-mode", _MODES[engine]]
    variables = {**_shared(site), "DYN_SYSTEM_PORT": "{port:" + engine + "}"}
    return Process(
        name=engine,
        argv=[
            *(site.python, "-m", "dynamo.vllm", "--model", site.model),
            *vllm_options(site, engine),
            *mode,
        ],
        env=engine_environment(site, engine, variables),
        ready_url=f"{_system(engine)}/health",
        ready_timeout_s=site.engine.start_timeout_s,
        side=None if site.is_alone else _MODES[engine],
        next_after_s=site.options.decode_after_s if engine == PREFILL else None,
    )


KIND = EngineKind(
    "dynamo",
    plan=dynamo_plan,
    examine=examine_serving,
    layout=served_layout,
    check=check_served,
    serves=True,
)
