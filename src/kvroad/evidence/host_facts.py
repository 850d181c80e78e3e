"""What the agent says of its host, as records."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["HostFacts", "HostSurvey", "RdmaPort"]


class RdmaPort(TypedDict):
    """A port of an RDMA device, as ``/sys/class/infiniband`` has it."""

    port: str
    state: str | None
    link_layer: str | None
    rate: str | None


class HostFacts(TypedDict):
    """What a host is; what cannot be read is None.

    ``gpus`` are rows of ``nvidia-smi``, memory in MiB; ``packages`` maps distributions to their
    versions.
    """

    node: str
    kernel: str
    machine: str
    system: str | None
    cpu: str | None
    n_cpus: int | None
    memory_bytes: int | None
    memory_available_bytes: int | None
    memlock_bytes: int | None
    boot_id: str | None
    load_1_min: float
    python: str
    executable: str
    packages: dict[str, str]
    gpus: list[dict[str, str]] | None
    rdma_ports: list[RdmaPort] | None
    interfaces: list[str]


class HostSurvey(HostFacts):
    """The facts, and what may change from one hour to the next.

    ``port_holders`` maps TCP ports to who listens on them, None: nobody; ``gpu_peers`` GPU to
    GPU to ``OK`` or why the one cannot read the other; ``gids`` RDMA ports to their GIDs.
    """

    work_dir: str
    work_dir_error: str | None
    disk_free_bytes: int
    port_holders: dict[str, str | None]
    gpu_processes: list[dict[str, str]] | None
    gpu_peers: dict[str, dict[str, str]] | None
    gids: dict[str, dict[str, str]]
