"""What one host has of what a study needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvroad.engines.nixl import layout_of, pool_bytes, probe_script
from kvroad.engines.serving import probe_script as serving_script
from kvroad.hosts import AgentHost, HostLost
from kvroad.study.design import Design, Launch
from kvroad.study.fields import Host, Study, Transport
from kvroad.study.sides import is_split

__all__ = ["OK", "REFUSED", "Finding", "disk", "findings_of", "free_bytes"]

NIXL_PACKAGES = ("nixl-cu13", "nixl-cu12", "nixl")


OK, WARNING, REFUSED = "ok", "warning", "refused"


# Left to the system and to everything else that runs on the host.
_MEMORY_SHARE = 0.9


_DISK_BYTES = 500_000_000


# What a process of the driver or a display holds on an idle GPU.
_IDLE_MIB = 600


class _Fault(NamedTuple):
    """Why something cannot be had, and what would help; empty where nothing would."""

    found: str
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """One line of the preflight table; ``needed`` says what would pass."""

    check: str
    status: str
    found: str
    needed: str = ""


def findings_of(study: Study, design: Design, host: AgentHost) -> list[Finding]:
    """Return what one host has of what a study needs, in the order of the table."""
    first = study.engine.side_channel_port
    ports = list(range(first, first + study.engine.rank_pairs)) if first else []
    facts = host.facts(ports)
    findings = [
        Finding("connection", OK, host.label),
        Finding("Python", OK, f"{facts['python']} at {facts['executable']}"),
        *_programs(study, design, facts, host),
        _work_folder(facts),
        *_ports(facts),
        *_devices(facts, host.host),
    ]
    if study.engine.memory == "VRAM":
        findings.append(_gpus_idle(facts, host.host))
    level = REFUSED if host.host.strict else WARNING
    # Serving engines have pools of their own, as large as their options make them.
    pools_bytes = _share(study) * pool_bytes(study, _largest(study, design))
    for name, transport in study.transports.items():
        fault = _transport_fault(
            transport, facts, host.host, pools_bytes, is_split=is_split(study.host)
        )
        status = level if fault else OK
        found, needed = fault or ("can be had", "")
        findings.append(Finding(f"transport {name}", status, found, needed))
    return findings


def _programs(
    study: Study, design: Design, facts: dict[str, Any], host: AgentHost
) -> list[Finding]:
    """Return what is there to be started: NIXL for a replay, else engines and load generator."""
    if study.engine.serving is not None:
        return [_serving(host, study)]
    findings = [_nixl(facts, study)]
    if findings[0].status == OK:
        findings.append(_ucx(host))
    return [*findings, _memory(facts, study, design, host.host)]


def _serving(host: AgentHost, study: Study) -> Finding:
    try:
        found = host.probe(serving_script(study))
    except HostLost as lost:
        return Finding("serving engines", REFUSED, str(lost).removeprefix(f"{host.label}: "))
    if fault := _serving_fault(found):
        return Finding("serving engines", REFUSED, fault.found, fault.fix)
    told = ", ".join(str(value) for name, value in found.items() if name.startswith("host."))
    return Finding("serving engines", OK, told)


# What helps where the program or the folder of a setting is not there.
_SERVING_FIXES = {
    "host.serving.python": (
        "set it to the interpreter that has vLLM; docs/serving.md tells how to get one"
    ),
    "host.serving.aiperf": (
        "set it to the program of aiperf's own environment, or take engine.serving.tool=vllm_bench"
    ),
    "host.serving.model": (
        "set it to the folder of weights and tokenizer, or leave it null to take the model's "
        "repository"
    ),
}


def _serving_fault(found: Mapping[str, Any]) -> _Fault | None:
    """Return what of serving engines is not on the host; None: nothing."""
    name = found["missing"]
    return None if name is None else _Fault(f"{name}: {found['error']}", _SERVING_FIXES[name])


def _largest(study: Study, design: Design) -> Launch:
    return max(design.launches, key=lambda launch: pool_bytes(study, launch))


def _share(study: Study) -> float:
    """Return the part of all pools that one host holds: half of them where there are two."""
    return 0.5 if is_split(study.host) else 1.0


def _nixl(facts: dict[str, Any], study: Study) -> Finding:
    packages: dict[str, str] = facts["packages"]
    found = next((f"{name} {packages[name]}" for name in NIXL_PACKAGES if name in packages), None)
    wanted = study.engine.nixl_version
    if found is None:
        return Finding(
            "NIXL",
            REFUSED,
            f"none of {', '.join(NIXL_PACKAGES)} is installed for {facts['executable']}",
            f"install one: {facts['executable']} -m pip install --no-deps nixl-cu13 numpy",
        )
    is_ok = wanted is None or found.split()[1] == wanted
    needed = "" if wanted is None else f"engine.nixl_version asks for {wanted}"
    return Finding("NIXL", OK if is_ok else REFUSED, found, needed)


def _ucx(host: AgentHost) -> Finding:
    needed = "NIXL must start with its UCX backend"
    try:
        found = host.probe(probe_script())
    except HostLost as lost:
        # With too little memory to lock NIXL may hang or die; the lines below say of such things.
        return Finding("UCX", REFUSED, str(lost).removeprefix(f"{host.label}: "), needed)
    if found["error"] is not None:
        return Finding("UCX", REFUSED, str(found["error"]), needed)
    return Finding("UCX", OK, f"{found['ucx']} at {found['ucx_library']}")


def _memory(facts: dict[str, Any], study: Study, design: Design, host: Host) -> Finding:
    largest, share = _largest(study, design), _share(study)
    needed = share * pool_bytes(study, largest)
    available = _available_bytes(facts, study, host)
    fits = int(available // (share * _bytes_per_pull(study, largest)))
    return Finding(
        f"{study.engine.memory} for the pools",
        OK if needed <= available else REFUSED,
        f"{needed / 1e9:.1f} GB asked for, {available / 1e9:.1f} GB to be had",
        f"the largest workload.concurrency that fits is {fits}",
    )


def _available_bytes(facts: dict[str, Any], study: Study, host: Host) -> float:
    if study.engine.memory == "DRAM":
        return float(_MEMORY_SHARE * (facts["memory_available_bytes"] or 0))
    free = [
        (float(gpu["memory.total"]) - float(gpu["memory.used"])) * 2**20
        for gpu in facts["gpus"] or []
        if int(gpu["index"]) in host.gpus
    ]
    # Each GPU holds one half of one pair, so the fullest one decides for all of them.
    halves = study.engine.rank_pairs * (1 if is_split(study.host) else 2)
    return _MEMORY_SHARE * min(free, default=0.0) * halves


def _bytes_per_pull(study: Study, launch: Launch) -> int:
    longest = max(cell.prompt_tokens for cell in launch.cells)
    return 2 * launch.arm.engine.rank_pairs * layout_of(study, launch, longest).n_pool_bytes


def _work_folder(facts: dict[str, Any]) -> Finding:
    if facts["work_dir_error"]:
        return Finding(
            "work folder", REFUSED, str(facts["work_dir_error"]), "set host.work_dir to another"
        )
    return disk("work folder", facts["disk_free_bytes"], facts["work_dir"])


def free_bytes(results_dir: Path) -> tuple[int, Path]:
    """Return the free bytes of the file system that results go to, and the folder asked about."""
    place = next(p for p in (results_dir, *results_dir.resolve().parents) if p.exists())
    return shutil.disk_usage(place).free, place


def disk(check: str, free: int, place: Path | str) -> Finding:
    """Return whether enough bytes are free for the raw files of a launch."""
    return Finding(
        check,
        OK if free >= _DISK_BYTES else REFUSED,
        f"{free / 1e9:.1f} GB free at {place}",
        f"{_DISK_BYTES / 1e9:.1f} GB are needed",
    )


def _ports(facts: dict[str, Any]) -> list[Finding]:
    findings = []
    for port, holder in facts["port_holders"].items():
        status = REFUSED if holder else OK
        needed = "end it, or set engine.side_channel_port"
        findings.append(Finding(f"port {port}", status, holder or "free", needed))
    return findings


def _devices(facts: dict[str, Any], host: Host) -> list[Finding]:
    """Hold what the host's file names against what the host has."""
    has_gpus = [gpu["index"] for gpu in facts["gpus"] or []]
    has_ports = [port["port"] for port in facts["rdma_ports"] or []]
    has_devices = [*has_ports, *(port.partition("/")[0] for port in has_ports)]
    named = (
        ("host.interfaces", host.interfaces, facts["interfaces"]),
        ("host.rdma_devices", [d.replace(":", "/") for d in host.rdma_devices], has_devices),
        ("host.gpus", [str(gpu) for gpu in host.gpus], has_gpus),
    )
    findings = []
    for check, wanted, has in named:
        missing = [name for name in wanted if name not in has]
        if missing:
            found = f"no {', '.join(missing)}"
            needed = f"the host has: {', '.join(has) or 'none'}"
            findings.append(Finding(check, REFUSED if host.strict else WARNING, found, needed))
        elif wanted:
            findings.append(Finding(check, OK, ", ".join(wanted)))
    return findings


def _gpus_idle(facts: dict[str, Any], host: Host) -> Finding:
    index_of = {gpu["uuid"]: int(gpu["index"]) for gpu in facts["gpus"] or []}
    busy = [
        f"GPU {index_of[p['gpu_uuid']]}: pid {p['pid']} ({p['process_name']})"
        for p in facts["gpu_processes"] or []
        if index_of.get(p["gpu_uuid"]) in host.gpus
    ]
    if not busy:
        # Processes in other containers are not listed, their memory is.
        busy = [
            f"GPU {gpu['index']}: {gpu['memory.used']} MiB in use"
            for gpu in facts["gpus"] or []
            if int(gpu["index"]) in host.gpus and float(gpu["memory.used"]) > _IDLE_MIB
        ]
    needed = "end them, or name other GPUs in host.gpus"
    return Finding("GPUs idle", REFUSED if busy else OK, "; ".join(busy) or "no process", needed)


def _transport_fault(
    transport: Transport,
    facts: dict[str, Any],
    host: Host,
    pools_bytes: float,
    *,
    is_split: bool,
) -> _Fault | None:
    """Return why a host cannot offer a transport, as far as it can be told; None: it can.

    The proof of its road has the last word: a host that has all of this may still take
    another road.
    """
    if is_split and not {"interface", "nic"} & set(transport.counters):
        return _Fault(f"{' or '.join(transport.roads)} joins processes of one host; these are two")
    if "nvlink" in transport.counters:
        return _nvlink_fault(facts, host)
    if "nic" in transport.counters:
        return _rdma_fault(facts, host, transport.link_layer, pools_bytes)
    return None


def _nvlink_fault(facts: dict[str, Any], host: Host) -> _Fault | None:
    gpus = [str(gpu) for gpu in host.gpus]
    if len(gpus) < 2:
        return _Fault(
            f"two GPUs are needed; host.gpus lists {len(gpus)}",
            "name them, such as host.gpus=[0,1]",
        )
    peers: dict[str, dict[str, str]] = facts["gpu_peers"] or {}
    for one in gpus:
        for other in gpus:
            state = peers.get(one, {}).get(other, "unknown")
            if one != other and state not in ("OK", "unknown"):
                return _Fault(
                    f"GPU {one} cannot read GPU {other} (nvidia-smi topo -p2p r: {state})",
                    "name GPUs that reach each other in host.gpus",
                )
    return None


def _rdma_fault(
    facts: dict[str, Any], host: Host, link_layer: str | None, pools_bytes: float
) -> _Fault | None:
    wanted = {device.replace(":", "/") for device in host.rdma_devices}
    ports = [
        port
        for port in facts["rdma_ports"] or []
        if not wanted or {port["port"], port["port"].partition("/")[0]} & wanted
    ]
    if not ports:
        return _Fault(
            "no RDMA device (/sys/class/infiniband)",
            "load the NIC's driver; in a pod, ask for the device and mount /dev/infiniband",
        )
    told = ", ".join(f"{p['port']} {p['state']} {p['link_layer']} {p['rate']}" for p in ports)
    up = [port for port in ports if "ACTIVE" in str(port["state"])]
    right = [p for p in up if link_layer is None or p["link_layer"] == link_layer]
    if not right:
        return _Fault(
            f"no port is up with link layer {link_layer or 'of any kind'}: {told}",
            "bring the link up, or name ports of that link layer in host.rdma_devices",
        )
    if not any(facts["gids"].get(port["port"]) for port in right):
        return _Fault(
            f"no GID on {', '.join(port['port'] for port in right)}",
            "give the port's interface an IP address",
        )
    limit = facts["memlock_bytes"]
    if limit is not None and limit < pools_bytes:
        return _Fault(
            f"{limit} bytes may be locked, the pools have {pools_bytes:.0f}: ulimit -l unlimited",
            "in a pod, add the capability IPC_LOCK",
        )
    return None
