"""Engine ``nixl``: a launch becomes a plan that replays KV pulls without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvroad.errors import UserError
from kvroad.plan import Claim, Command, File, Phase, Plan, PlannedCell, Process
from kvroad.study.design import Cell, Launch
from kvroad.study.fields import Engine, Host, Study
from kvroad.study.kinds import BACKENDS
from kvroad.study.kv_layout import KvLayout, pull_layout
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["layout_of", "pool_bytes", "probe_script", "replay_plan"]

_REPLAY = Path(__file__).parent / "replay"


def layout_of(study: Study, launch: Launch, prompt_tokens: int) -> KvLayout:
    """Return the layout of one rank's pull in this launch."""
    return pull_layout(study.model, launch.arm.engine, launch.arm.workload, prompt_tokens)


def pool_bytes(study: Study, launch: Launch) -> int:
    """Return the bytes of all pools of a launch: both halves of every rank pair."""
    longest = max(cell.prompt_tokens for cell in launch.cells)
    pull = layout_of(study, launch, longest).n_pool_bytes
    return 2 * launch.arm.engine.rank_pairs * launch.arm.workload.concurrency * pull


def probe_script() -> str:
    """Return a script that prints which NIXL and UCX the replay would find on a host."""
    source = (_REPLAY / "binding.py").read_text()
    return f"{source}\n\nimport json\n\nprint(json.dumps(probe()), flush=True)\n"


def replay_plan(study: Study, launch: Launch, cells: list[Cell], owner: str) -> Plan:
    """Return the plan of one launch.

    Parameters
    ----------
    cells
        The cells of the launch that are still to be measured, in their order.
    owner
        Who asks: shown to others who find the host busy.
    """
    engine = launch.arm.engine
    ranks = range(engine.rank_pairs)
    passive, posting = "prefill", "decode"
    if engine.operation == "write":
        passive, posting = posting, passive
    layouts = {c.id: layout_of(study, launch, c.prompt_tokens) for c in cells}
    return Plan(
        launch=launch.id,
        arm=launch.arm.label,
        owner=owner,
        claim=_claim(study, launch, next(iter(layouts.values()))),
        # The passive halves come first: NIXL agents that start at once can hang in UCX 1.20.
        processes=[_process(launch, role, r) for role in (passive, posting) for r in ranks],
        cells=[_planned_cell(study, launch, c, layouts[c.id], posting) for c in cells],
        files=[
            *(File(f"replay/{p.name}", p.read_text()) for p in sorted(_REPLAY.glob("*.py"))),
            File("replay.json", json.dumps(_config(study, launch, layouts), indent=1)),
        ],
        ports=_ports(engine),
        bind_address=side_host(study.host, passive).bind_address,
        stop_timeout_s=engine.stop_timeout_s,
        facts_from=f"{posting}-0",
    )


def _claim(study: Study, launch: Launch, layout: KvLayout) -> Claim:
    arm, host = launch.arm, study.host
    return Claim(
        transport=arm.transport_name,
        roads=list(arm.transport.roads),
        operation=arm.engine.operation,
        memory=arm.engine.memory,
        descriptor_bytes=layout.descriptor_bytes,
        backend=arm.transport.backend,
        environment=BACKENDS[arm.transport.backend].variables(arm.environment),
        counters=list(arm.transport.counters),
        link_layer=arm.transport.link_layer,
        interfaces=list(host.interfaces),
        rdma_devices=list(host.rdma_devices),
        gpus=list(host.gpus),
        ranks=arm.engine.rank_pairs,
        use_counts=arm.environment.get("UCX_PROTO_INFO") == "used",
        carried_at_least=study.road.carried_at_least,
        not_carried_at_most=study.road.not_carried_at_most,
        idle_bytes_per_s=study.road.idle_bytes_per_s,
    )


def _config(study: Study, launch: Launch, layouts: dict[str, KvLayout]) -> dict[str, Any]:
    engine, first = launch.arm.engine, next(iter(layouts.values()))
    most_blocks = max(layout.n_blocks for layout in layouts.values())
    prefill_gpus, decode_gpus = _gpus(study, launch)
    return {
        "operation": engine.operation,
        "memory": engine.memory,
        "num_threads": engine.num_threads,
        "progress_delay_us": engine.progress_delay_us,
        "poll_interval_us": engine.poll_interval_us,
        "block_order": engine.block_order,
        "ranks": engine.rank_pairs,
        "seed": study.seed * 1000 + launch.block,
        "n_tensors": first.n_tensors,
        "halves": first.halves,
        "descriptor_bytes": first.descriptor_bytes,
        "gap_bytes": first.gap_bytes,
        "pool_blocks": most_blocks * launch.arm.workload.concurrency,
        "prefill_gpus": prefill_gpus,
        "decode_gpus": decode_gpus,
    }


def _gpus(study: Study, launch: Launch) -> tuple[list[int], list[int]]:
    """Return the GPU of each prefill and each decode rank: first half, second half."""
    engine, host = launch.arm.engine, study.host
    if engine.memory != "VRAM":
        return [], []
    if is_split(host):
        prefill, decode = (side_host(host, side) for side in SIDES)
        return _first_gpus(prefill, engine, engine.rank_pairs), _first_gpus(
            decode, engine, engine.rank_pairs
        )
    gpus = _first_gpus(host, engine, 2 * engine.rank_pairs)
    return gpus[: engine.rank_pairs], gpus[engine.rank_pairs :]


def _first_gpus(host: Host, engine: Engine, n: int) -> list[int]:
    if len(host.gpus) < n:
        raise UserError(
            f"engine.memory=VRAM with engine.rank_pairs={engine.rank_pairs} needs {n} GPUs; "
            f"host.gpus of {host.name} lists {len(host.gpus)}"
        )
    return host.gpus[:n]


def _ports(engine: Engine) -> dict[str, int]:
    """Return the ports that are asked for; the passive halves choose and tell any others."""
    first = engine.side_channel_port
    return {f"side-{r}": first + r for r in range(engine.rank_pairs)} if first else {}


def _process(launch: Launch, role: str, rank: int) -> Process:
    engine = launch.arm.engine
    ports = ",".join("{port:side-" + str(r) + "}" for r in range(engine.rank_pairs))
    return Process(
        name=f"{role}-{rank}",
        argv=[
            *("{python}", "-m", "replay", role, str(rank)),
            *("--config", "replay.json", "--events", "{events}"),
            *("--host", "{bind}", "--ports", ports),
        ],
        env=launch.arm.environment,
        ready_event="ready",
        ready_timeout_s=engine.start_timeout_s,
        stop_line="quit",
        side=role,
    )


def _planned_cell(
    study: Study, launch: Launch, cell: Cell, layout: KvLayout, posting: str
) -> PlannedCell:
    work, engine = launch.arm.workload, launch.arm.engine
    names = [f"{posting}-{rank}" for rank in range(engine.rank_pairs)]
    loads = [
        ("warmup", work.warmup_pulls, 1),
        ("one_at_a_time", work.pulls, 1),
        ("in_flight", work.pulls_in_flight, work.concurrency),
    ]
    phases = [
        Phase(
            name=name,
            command=Command(
                processes=names,
                line={
                    "cell": cell.id,
                    "phase": name,
                    "n_blocks": layout.n_blocks,
                    "pulls": pulls,
                    "in_flight": in_flight,
                    "seed": study.seed * 1_000_000 + cell.block * 1000 + number,
                },
                answer_event="phase_done",
            ),
            timeout_s=engine.phase_timeout_s,
            pulls=pulls * engine.rank_pairs,
            payload_bytes=pulls * engine.rank_pairs * layout.n_bytes if number == 0 else None,
        )
        for number, (name, pulls, in_flight) in enumerate(loads)
        if pulls
    ]
    return PlannedCell(cell.id, cell.prompt_tokens, phases)
