"""What one host has of what a study needs."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvroad.engines import largest_launch, pool_bytes
from kvroad.errors import UserError
from kvroad.evidence.host_facts import HostSurvey
from kvroad.hosts import AgentHost, HostLost
from kvroad.study.design import Design
from kvroad.study.fields import Host, Study, Transport
from kvroad.study.kinds import ENGINES, OK, REFUSED, WARNING, ExaminedHost, HostFinding
from kvroad.study.sides import is_split

__all__ = ["disk", "findings_of", "free_bytes"]

# ASSUME the raw files of a launch take less.
_DISK_BYTES = 500_000_000
# What a process of the driver or a display holds on an idle GPU.
_IDLE_MIB = 600


class _Fault(NamedTuple):
    """Why something cannot be had, and what would help; empty where nothing would."""

    found: str
    fix: str = ""


def findings_of(study: Study, design: Design, host: AgentHost) -> list[HostFinding]:
    """Return what one host has of what a study needs, in the order of the table.

    Raises
    ------
    HostLost
        When the host cannot be reached or has no usable Python.
    """
    first = study.engine.side_channel_port
    ports = list(range(first, first + study.engine.rank_pairs)) if first else []
    facts = host.facts(ports)
    engine = ENGINES[study.engine.name]
    findings = [
        HostFinding("connection", OK, host.label),
        HostFinding("Python", OK, f"{facts['python']} at {facts['executable']}"),
        *engine.examine(study, design, ExaminedHost(host.host, facts, _asker(host))),
        _work_folder(facts),
        *_ports(facts),
        *_devices(facts, host.host),
    ]
    if study.engine.memory == "VRAM":
        findings.append(_gpus_idle(facts, host.host))
    level = REFUSED if host.host.strict else WARNING
    # Engines that serve have pools of their own: at least as large, for all that is in flight.
    pools_bytes = pool_bytes(study, largest_launch(study, design))
    if is_split(study.host):
        pools_bytes //= 2
    for name, transport in study.transports.items():
        fault = _transport_fault(
            transport, facts, host.host, pools_bytes, is_split=is_split(study.host)
        )
        status = level if fault else OK
        found, needed = fault or ("can be had", "")
        findings.append(HostFinding(f"transport {name}", status, found, needed))
    return findings


def _asker(host: AgentHost) -> Callable[[str], dict[str, object]]:
    """Return what runs a script on the host; in the table the host need not be named again."""

    def ask(script: str) -> dict[str, object]:
        try:
            return host.probe(script)
        except HostLost as lost:
            raise UserError(str(lost).removeprefix(f"{host.label}: ")) from lost

    return ask


def _work_folder(facts: HostSurvey) -> HostFinding:
    if facts["work_dir_error"]:
        return HostFinding(
            "work folder", REFUSED, str(facts["work_dir_error"]), "set host.work_dir to another"
        )
    return disk("work folder", facts["disk_free_bytes"], facts["work_dir"])


def free_bytes(results_dir: Path) -> tuple[int, Path]:
    """Return the free bytes of the file system that results go to, and the folder asked about."""
    place = next(p for p in (results_dir, *results_dir.resolve().parents) if p.exists())
    return shutil.disk_usage(place).free, place


def disk(check: str, free: int, place: Path | str) -> HostFinding:
    """Return whether enough bytes are free for the raw files of a launch."""
    return HostFinding(
        check,
        OK if free >= _DISK_BYTES else REFUSED,
        f"{free / 1e9:.1f} GB free at {place}",
        f"{_DISK_BYTES / 1e9:.1f} GB are needed",
    )


def _ports(facts: HostSurvey) -> list[HostFinding]:
    findings = []
    for port, holder in facts["port_holders"].items():
        status = REFUSED if holder else OK
        needed = "end it, or set engine.side_channel_port"
        findings.append(HostFinding(f"port {port}", status, holder or "free", needed))
    return findings


def _devices(facts: HostSurvey, host: Host) -> list[HostFinding]:
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
            findings.append(HostFinding(check, REFUSED if host.strict else WARNING, found, needed))
        elif wanted:
            findings.append(HostFinding(check, OK, ", ".join(wanted)))
    return findings


def _gpus_idle(facts: HostSurvey, host: Host) -> HostFinding:
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
    return HostFinding(
        "GPUs idle", REFUSED if busy else OK, "; ".join(busy) or "no process", needed
    )


def _transport_fault(
    transport: Transport,
    facts: HostSurvey,
    host: Host,
    pools_bytes: int,
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


def _nvlink_fault(facts: HostSurvey, host: Host) -> _Fault | None:
    gpus = [str(gpu) for gpu in host.gpus]
    if len(gpus) < 2:
        return _Fault(
            f"two GPUs are needed; host.gpus lists {len(gpus)}",
            "name them, such as host.gpus=[0,1]",
        )
    peers = facts["gpu_peers"] or {}
    for gpu, peer in itertools.permutations(gpus, 2):
        state = peers.get(gpu, {}).get(peer, "unknown")
        if state not in ("OK", "unknown"):
            return _Fault(
                f"GPU {gpu} cannot read GPU {peer} (nvidia-smi topo -p2p r: {state})",
                "name GPUs that reach each other in host.gpus",
            )
    return None


def _rdma_fault(
    facts: HostSurvey, host: Host, link_layer: str | None, pools_bytes: int
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
    described = ", ".join(f"{p['port']} {p['state']} {p['link_layer']} {p['rate']}" for p in ports)
    up = [port for port in ports if "ACTIVE" in str(port["state"])]
    right = [p for p in up if link_layer is None or p["link_layer"] == link_layer]
    if not right:
        return _Fault(
            f"no port is up with link layer {link_layer or 'of any kind'}: {described}",
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
            f"{limit} bytes may be locked, the pools have {pools_bytes}: ulimit -l unlimited",
            "in a pod, add the capability IPC_LOCK",
        )
    return None
