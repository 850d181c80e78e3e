"""Engine ``nixl``: a launch becomes a plan that replays KV pulls without an engine."""

from __future__ import annotations

import json
from pathlib import Path

from kvroad.engines import claim_of, largest_launch, layout_of, loads_of, pool_bytes
from kvroad.engines.replay import ReplayConfig
from kvroad.errors import UserError
from kvroad.evidence.host_facts import HostSurvey
from kvroad.plan import Command, File, Phase, Plan, PlannedCell, Process
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Engine, Host, Model, Study
from kvroad.study.kinds import OK, REFUSED, EngineKind, ExaminedHost, HostFinding
from kvroad.study.kv_layout import KvLayout, in_regions
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["KIND", "replay_plan"]

_REPLAY = Path(__file__).parent / "replay"
_PACKAGES = ("nixl-cu13", "nixl-cu12", "nixl")
# Left to the system and to everything else that runs on the host.
_MEMORY_SHARE = 0.9


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
        claim=claim_of(study, launch, next(iter(layouts.values()))),
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


def _config(study: Study, launch: Launch, layouts: dict[str, KvLayout]) -> ReplayConfig:
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
    engine = launch.arm.engine
    names = [f"{posting}-{rank}" for rank in range(engine.rank_pairs)]
    phases = [
        Phase(
            name=load.phase,
            command=Command(
                processes=names,
                line={
                    "cell": cell.id,
                    "phase": load.phase,
                    "n_blocks": layout.n_blocks,
                    "pulls": load.pulls,
                    "in_flight": load.in_flight,
                    "seed": load.seed,
                },
                answer_event="phase_done",
            ),
            timeout_s=engine.phase_timeout_s,
            pulls=load.pulls * engine.rank_pairs,
            # One pull of the warm-up shows the road: a wrong one ends the launch there.
            payload_bytes=load.pulls * engine.rank_pairs * layout.n_bytes
            if load.phase == "warmup"
            else None,
        )
        for load in loads_of(study, launch, cell)
        if load.pulls
    ]
    return PlannedCell(cell.id, cell.prompt_tokens, phases)


def _layout(layout: KvLayout, engine: Engine, model: Model) -> KvLayout:
    return layout if engine.regions is None else in_regions(layout, engine.regions)


def _check(engine: Engine) -> None:
    if engine.regions is not None and engine.cells_per_launch == "all":
        raise UserError(
            "engine.regions: a launch has one pool, and the size of a region depends on the "
            "prompt length; set engine.cells_per_launch=one"
        )


def _examine(study: Study, design: Design, host: ExaminedHost) -> list[HostFinding]:
    nixl = _nixl(host.facts, study.engine.nixl_version)
    ucx = [_ucx(host)] if nixl.status == OK else []
    return [nixl, *ucx, _memory(study, design, host)]


def _nixl(facts: HostSurvey, version: str | None) -> HostFinding:
    """Return which NIXL the host's Python has, refused where it is not ``version``."""
    packages = facts["packages"]
    found = next((f"{name} {packages[name]}" for name in _PACKAGES if name in packages), None)
    if found is None:
        return HostFinding(
            "NIXL",
            REFUSED,
            f"none of {', '.join(_PACKAGES)} is installed for {facts['executable']}",
            f"install one: {facts['executable']} -m pip install --no-deps nixl-cu13 numpy",
        )
    is_right = version is None or found.split()[1] == version
    needed = "" if version is None else f"engine.nixl_version asks for {version}"
    return HostFinding("NIXL", OK if is_right else REFUSED, found, needed)


def _ucx(host: ExaminedHost) -> HostFinding:
    """Start NIXL on the host and return which UCX it finds."""
    needed = "NIXL must start with its UCX backend"
    script = (_REPLAY / "binding.py").read_text()
    script += "\n\nimport json\n\nprint(json.dumps(probe()), flush=True)\n"
    try:
        found = host.ask(script)
    except UserError as error:
        # With too little memory to lock NIXL may hang or die; other lines say of such things.
        return HostFinding("UCX", REFUSED, str(error), needed)
    if found["error"] is not None:
        return HostFinding("UCX", REFUSED, str(found["error"]), needed)
    return HostFinding("UCX", OK, f"{found['ucx']} at {found['ucx_library']}")


def _memory(study: Study, design: Design, host: ExaminedHost) -> HostFinding:
    """Return whether the pools of the largest launch fit; of two hosts each has half of them."""
    largest = largest_launch(study, design)
    share = 0.5 if is_split(study.host) else 1.0
    needed = share * pool_bytes(study, largest)
    available = _available_bytes(study, host)
    fits = int(available // (share * pool_bytes(study, largest, concurrency=1)))
    return HostFinding(
        f"{study.engine.memory} for the pools",
        OK if needed <= available else REFUSED,
        f"{needed / 1e9:.1f} GB asked for, {available / 1e9:.1f} GB to be had",
        f"the largest workload.concurrency that fits is {fits}",
    )


def _available_bytes(study: Study, host: ExaminedHost) -> float:
    if study.engine.memory == "DRAM":
        return _MEMORY_SHARE * (host.facts["memory_available_bytes"] or 0)
    free = [
        (float(gpu["memory.total"]) - float(gpu["memory.used"])) * 2**20
        for gpu in host.facts["gpus"] or []
        if int(gpu["index"]) in host.host.gpus
    ]
    # Each GPU holds one half of one pair, so the fullest one decides for all of them.
    halves = study.engine.rank_pairs * (1 if is_split(study.host) else 2)
    return _MEMORY_SHARE * min(free, default=0.0) * halves


KIND = EngineKind("nixl", plan=replay_plan, examine=_examine, layout=_layout, check=_check)
