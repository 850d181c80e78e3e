"""Engine ``vllm``: the same prefill and decode engines without Dynamo, joined by a proxy."""

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

__all__ = ["KIND", "vllm_plan"]

_SIDES = {PREFILL: "prefill", DECODE: "decode"}


def vllm_plan(study: Study, launch: Launch, cells: list[Cell], owner: str) -> Plan:
    """Return the plan of one launch; ``transport=none`` has one engine behind the same proxy."""
    site = Site(study, launch)
    servers = [*(_server(site, engine) for engine in site.engines), _proxy(site)]
    ports = [FRONTEND, *site.engines]
    return serving_plan(site, cells, owner, servers, ports, lambda e: f"{_address(e)}/metrics")


def _address(engine: str) -> str:
    return "http://{bind}:{port:" + engine + "}"


def _server(site: Site, engine: str) -> Process:
    return Process(
        name=engine,
        argv=[
            *(site.python, "-m", "vllm.entrypoints.cli.main", "serve", site.model),
            *("--host", "{bind}", "--port", "{port:" + engine + "}"),
            *vllm_options(site, engine),
        ],
        env=engine_environment(site, engine, {}),
        ready_url=f"{_address(engine)}/health",
        ready_timeout_s=site.engine.start_timeout_s,
        side=None if site.is_alone else _SIDES[engine],
        next_after_s=site.options.decode_after_s if engine == PREFILL else None,
    )


def _proxy(site: Site) -> Process:
    prefill = [] if site.is_alone else ["--prefill", _address(PREFILL)]
    return Process(
        name=FRONTEND,
        argv=[
            *("{python}", "-m", "driver", "proxy", "--host", "{bind}"),
            *("--port", "{port:frontend}", "--decode", _address(DECODE), *prefill),
        ],
        ready_url="http://{bind}:{port:frontend}/health",
        ready_timeout_s=site.engine.start_timeout_s,
    )


KIND = EngineKind(
    "vllm",
    plan=vllm_plan,
    examine=examine_serving,
    layout=served_layout,
    check=check_served,
    serves=True,
)
