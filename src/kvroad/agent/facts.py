"""What the host is: kernel, processors, memory, GPUs, NICs, boot; for provenance."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from kvroad.evidence.host_facts import HostFacts, RdmaPort

__all__ = ["boot_id", "host_facts", "query_gpus"]

# Distributions whose versions decide what a measurement means; a plan may name more.
_PACKAGES = ("nixl-cu13", "nixl-cu12", "nixl", "numpy", "vllm", "ai-dynamo", "aiperf", "torch")
_GPU_FIELDS = "index,name,uuid,driver_version,memory.total,memory.used"


def host_facts(packages: Iterable[str] = ()) -> HostFacts:
    """Return the facts of this host; what cannot be read is None, never a guess.

    ``packages`` are further distributions whose versions are wanted.
    """
    return {
        "node": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _os_name(),
        "cpu": _first_value("/proc/cpuinfo", "model name"),
        "n_cpus": os.cpu_count(),
        "memory_bytes": _memory("MemTotal"),
        "memory_available_bytes": _memory("MemAvailable"),
        "memlock_bytes": _memlock(),
        "boot_id": boot_id(),
        "load_1_min": os.getloadavg()[0],
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": _versions([*_PACKAGES, *packages]),
        "gpus": query_gpus(),
        "rdma_ports": _rdma_ports(),
        "interfaces": sorted(p.name for p in Path("/sys/class/net").glob("*")),
    }


def boot_id() -> str | None:
    """Return the identity of the current boot (random(4))."""
    return _read("/proc/sys/kernel/random/boot_id")


def query_gpus() -> list[dict[str, str]] | None:
    """Return the GPUs as nvidia-smi lists them; None where it is not installed or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    names = _GPU_FIELDS.split(",")
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(names, row)) for row in rows]


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _rdma_ports() -> list[RdmaPort] | None:
    root = Path("/sys/class/infiniband")
    if not root.is_dir():
        return None
    return [
        {
            "port": f"{port.parent.parent.name}/{port.name}",
            "state": _read(port / "state"),
            "link_layer": _read(port / "link_layer"),
            "rate": _read(port / "rate"),
        }
        for port in sorted(root.glob("*/ports/*"))
    ]


def _read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _first_value(path: str, name: str) -> str | None:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _memory(name: str) -> int | None:
    value = _first_value("/proc/meminfo", name)
    return int(value.split()[0]) * 1024 if value else None


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _os_name() -> str | None:
    for line in (_read("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return None
