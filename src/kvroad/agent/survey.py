"""What a host has right now: room, free ports, idle GPUs and their peers, GIDs of RDMA ports."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kvroad.agent.facts import host_facts
from kvroad.evidence.host_facts import HostSurvey

__all__ = ["parse_peers", "survey"]

_LISTENING = "0A"  # TCP_LISTEN of include/net/tcp_states.h
_NO_GID = {"", "0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000"}
_COMPUTE_FIELDS = "gpu_uuid,pid,process_name,used_memory"


def survey(work_dir: Path, ports: Sequence[int] = ()) -> HostSurvey:
    """Return the host's facts and what may change from one hour to the next."""
    error = _write_error(work_dir)
    place = next(p for p in (work_dir, *work_dir.absolute().parents) if p.exists())
    return {
        **host_facts(),
        "work_dir": str(work_dir),
        "work_dir_error": error,
        "disk_free_bytes": shutil.disk_usage(place).free,
        "port_holders": {str(port): _holder(port) for port in ports},
        "gpu_processes": _gpu_processes(),
        "gpu_peers": _gpu_peers(),
        "gids": _gids(),
    }


def _write_error(work_dir: Path) -> str | None:
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        probe = work_dir / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as failed:
        return str(failed)
    return None


def _holder(port: int) -> str | None:
    """Return who listens on a TCP port, ``pid 12 (name)`` where that can be seen; None: free."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(table)[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target in inodes:
            pid = link.parts[2]
            name = "".join(_lines(f"/proc/{pid}/comm"))
            return f"pid {pid} ({name})"
    return "a process of another user"


def _gpu_processes() -> list[dict[str, str]] | None:
    out = _nvidia_smi(f"--query-compute-apps={_COMPUTE_FIELDS}", "--format=csv,noheader,nounits")
    if out is None:
        return None
    rows = [line.split(", ") for line in out.splitlines() if line.strip()]
    return [dict(zip(_COMPUTE_FIELDS.split(","), row)) for row in rows]


def _gpu_peers() -> dict[str, dict[str, str]] | None:
    out = _nvidia_smi("topo", "-p2p", "r")
    return None if out is None else parse_peers(out)


def parse_peers(text: str) -> dict[str, dict[str, str]]:
    """Read ``nvidia-smi topo -p2p r``: GPU index to GPU index to ``OK`` or why not."""
    peers: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if words and all(word.startswith("GPU") for word in words):
            columns = [word[3:] for word in words]
        elif len(words) == len(columns) + 1 and words[0].startswith("GPU"):
            peers[words[0][3:]] = dict(zip(columns, words[1:]))
    return peers


def _nvidia_smi(*words: str) -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _gids() -> dict[str, dict[str, str]]:
    """Return the GIDs in use of each RDMA port: ``mlx5_0/1`` to index to type and address."""
    found: dict[str, dict[str, str]] = {}
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        entries = found.setdefault(f"{port.parent.parent.name}/{port.name}", {})
        for path in sorted((port / "gids").glob("*"), key=lambda p: int(p.name)):
            gid = "".join(_lines(path))
            if gid not in _NO_GID:
                kind = "".join(_lines(port / "gid_attrs" / "types" / path.name))
                entries[path.name] = f"{kind} {gid}".strip()
    return found


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
