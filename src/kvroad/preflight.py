"""What every host of a study must have before anything is launched on it: one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvroad import study as studies
from kvroad.cells import write_json
from kvroad.design import Design, Launch
from kvroad.engines.nixl import layout_of, pool_bytes, probe_script
from kvroad.engines.serving import probe_script as serving_script
from kvroad.errors import UserError
from kvroad.hosts import Host, HostLost, RunningHost, open_host
from kvroad.lost_hosts import note_lost
from kvroad.study import Study

__all__ = [
    "OK",
    "REFUSED",
    "Finding",
    "check_host",
    "check_hosts",
    "check_once",
    "findings_of",
    "refuse",
    "table_lines",
]

NIXL_PACKAGES = ("nixl-cu13", "nixl-cu12", "nixl")
OK, WARNING, REFUSED = "ok", "warning", "refused"
# Left to the system and to everything else that runs on the host.
_MEMORY_SHARE = 0.9
_DISK_BYTES = 500_000_000
# What a process of the driver or a display holds on an idle GPU.
_IDLE_MIB = 600
_CHECKED_AT_ONCE = 8


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


def check_host(
    study: Study,
    design: Design,
    host: RunningHost,
    results_dir: Path,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Check every host, write the tables beside the results and return their rows.

    Raises
    ------
    UserError
        For the first check that fails, with what would pass.
    """
    rows: list[dict[str, Any]] = []
    for one in host.hosts():
        findings = [*findings_of(study, design, one), _disk("disk here", *_free(results_dir))]
        table = [asdict(finding) for finding in findings]
        write_json(results_dir / "hosts" / one.host.name / "preflight.json", table)
        rows += [{"host": one.host.name, **row} for row in table]
        if any(finding.status != OK for finding in findings):
            for line in table_lines(findings, one.label):
                say(line)
        refuse(findings, one.label)
    return rows


def check_once(
    study: Study,
    design: Design,
    host: RunningHost,
    results_dir: Path,
    done: Path,
    say: Callable[[str], None],
) -> None:
    """Check hosts as `check_host` does, unless ``done`` says that it was done already."""
    if not done.exists():
        write_json(done, check_host(study, design, host, results_dir, say))


def check_hosts(
    study: Study,
    design: Design,
    results_dir: Path,
    run_id: str,
    names: Collection[str],
    say: Callable[[str], None] = print,
) -> None:
    """Check the named hosts of a study, all at once.

    Of several hosts those that fail are lost for this run, and the others go on. Nodes of
    Slurm are checked in the job that has got them.

    Raises
    ------
    UserError
        When a study's one host fails, or all of them do.
    """
    todo = [host for host in studies.hosts_of(study) if host.name in names]
    todo = [host for host in todo if host.connection != "slurm"]
    if not todo:
        return
    if not study.hosts:
        with closing(open_host(study.host)) as host:
            check_host(study, design, host, results_dir, say)
        return

    def check(one: studies.Host) -> str:
        try:
            with closing(open_host(one)) as host:
                check_host(studies.on_host(study, one.name), design, host, results_dir, say)
        except UserError as error:
            note_lost(results_dir, run_id, one.name, str(error))
            say(f"host {one.name} is left out of this run: {error}")
            return str(error)
        return ""

    with ThreadPoolExecutor(_CHECKED_AT_ONCE) as pool:
        errors = list(pool.map(check, todo))
    if all(errors):
        raise UserError(f"no host of {study.name} can be used; {todo[0].name}: {errors[0]}")


def refuse(findings: list[Finding], label: str) -> None:
    """Raise UserError for the first finding that is refused, and count the others."""
    refused = [finding for finding in findings if finding.status == REFUSED]
    if not refused:
        return
    first = refused[0]
    more = f" (and {len(refused) - 1} more, see the table)" if len(refused) > 1 else ""
    needed = f"; {first.needed}" if first.needed else ""
    raise UserError(f"{label}: {first.check}: {first.found}{needed}{more}")


def table_lines(findings: list[Finding], label: str) -> list[str]:
    """Return the table as lines of text."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"preflight of {label}:"]
    for finding in findings:
        needed = f"; {finding.needed}" if finding.needed and finding.status != OK else ""
        lines.append(f"  {finding.check:{width}}  {finding.status:7}  {finding.found}{needed}")
    return lines


def findings_of(study: Study, design: Design, host: Host) -> list[Finding]:
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
            transport, facts, host.host, pools_bytes, is_split=studies.is_split(study.host)
        )
        status = level if fault else OK
        found, needed = fault or ("can be had", "")
        findings.append(Finding(f"transport {name}", status, found, needed))
    return findings


def _programs(study: Study, design: Design, facts: dict[str, Any], host: Host) -> list[Finding]:
    """Return what is there to be started: NIXL for a replay, else engines and load generator."""
    if study.engine.serving is not None:
        return [_serving(host, study)]
    findings = [_nixl(facts, study)]
    if findings[0].status == OK:
        findings.append(_ucx(host))
    return [*findings, _memory(facts, study, design, host.host)]


def _serving(host: Host, study: Study) -> Finding:
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
    return 0.5 if studies.is_split(study.host) else 1.0


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


def _ucx(host: Host) -> Finding:
    needed = "NIXL must start with its UCX backend"
    try:
        found = host.probe(probe_script())
    except HostLost as lost:
        # With too little memory to lock NIXL may hang or die; the lines below say of such things.
        return Finding("UCX", REFUSED, str(lost).removeprefix(f"{host.label}: "), needed)
    if found["error"] is not None:
        return Finding("UCX", REFUSED, str(found["error"]), needed)
    return Finding("UCX", OK, f"{found['ucx']} at {found['ucx_library']}")


def _memory(facts: dict[str, Any], study: Study, design: Design, host: studies.Host) -> Finding:
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


def _available_bytes(facts: dict[str, Any], study: Study, host: studies.Host) -> float:
    if study.engine.memory == "DRAM":
        return float(_MEMORY_SHARE * (facts["memory_available_bytes"] or 0))
    free = [
        (float(gpu["memory.total"]) - float(gpu["memory.used"])) * 2**20
        for gpu in facts["gpus"] or []
        if int(gpu["index"]) in host.gpus
    ]
    # Each GPU holds one half of one pair, so the fullest one decides for all of them.
    halves = study.engine.rank_pairs * (1 if studies.is_split(study.host) else 2)
    return _MEMORY_SHARE * min(free, default=0.0) * halves


def _bytes_per_pull(study: Study, launch: Launch) -> int:
    longest = max(cell.prompt_tokens for cell in launch.cells)
    return 2 * launch.arm.engine.rank_pairs * layout_of(study, launch, longest).n_pool_bytes


def _work_folder(facts: dict[str, Any]) -> Finding:
    if facts["work_dir_error"]:
        return Finding(
            "work folder", REFUSED, str(facts["work_dir_error"]), "set host.work_dir to another"
        )
    return _disk("work folder", facts["disk_free_bytes"], facts["work_dir"])


def _free(results_dir: Path) -> tuple[int, Path]:
    place = next(p for p in (results_dir, *results_dir.resolve().parents) if p.exists())
    return shutil.disk_usage(place).free, place


def _disk(check: str, free: int, place: Path | str) -> Finding:
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


def _devices(facts: dict[str, Any], host: studies.Host) -> list[Finding]:
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


def _gpus_idle(facts: dict[str, Any], host: studies.Host) -> Finding:
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
    transport: studies.Transport,
    facts: dict[str, Any],
    host: studies.Host,
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


def _nvlink_fault(facts: dict[str, Any], host: studies.Host) -> _Fault | None:
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
    facts: dict[str, Any], host: studies.Host, link_layer: str | None, pools_bytes: float
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
