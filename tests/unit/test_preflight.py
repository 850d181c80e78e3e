"""The preflight table from the facts of hosts that are not this one."""

from dataclasses import replace
from typing import Any

import pytest
from studies import TRANSPORTS, make_study

from kvroad.agent.survey import parse_peers
from kvroad.design import make_design
from kvroad.errors import UserError
from kvroad.hosts import Host, HostLost
from kvroad.preflight import check_host
from kvroad.study import Engine, HostSide, Transport
from kvroad.study import Host as HostSpec

# As two H200 print it, escape sequences included.
PEERS = (
    " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n"
    "  OK   = Status Ok\n  CNS  = Chipset not supported\n"
)
FACTS: dict[str, Any] = {
    "python": "3.12.3",
    "executable": "/usr/bin/python3",
    "packages": {"nixl-cu13": "1.5.1"},
    "memory_available_bytes": 10**12,
    "memlock_bytes": None,
    "interfaces": ["eth0", "lo"],
    "rdma_ports": [
        {"port": "mlx5_0/1", "state": "4: ACTIVE", "link_layer": "Ethernet", "rate": "400 Gb/sec"}
    ],
    "gids": {"mlx5_0/1": {"3": "RoCE v2 0000:0000:0000:0000:0000:ffff:0a00:0001"}},
    "gpus": [
        {"index": str(i), "uuid": f"GPU-{i}", "memory.total": "143771", "memory.used": "4"}
        for i in (0, 1)
    ],
    "gpu_processes": [],
    "gpu_peers": parse_peers(PEERS),
    "port_holders": {},
    "work_dir": "/home/me/.kvroad/node",
    "work_dir_error": None,
    "disk_free_bytes": 10**12,
}
NVLINK = Transport(roads=["cuda_ipc"], ucx_tls=["cuda_ipc", "cuda_copy"], counters=["nvlink"])


class Elsewhere(Host):
    """A host whose facts are given."""

    def __init__(self, spec: HostSpec, facts: dict[str, Any]) -> None:
        self.host = spec
        self._facts = facts

    @property
    def label(self) -> str:
        return f"host {self.host.name}"

    def facts(self, ports=()) -> dict[str, Any]:
        return {**self._facts, "asked": list(ports)}

    def probe(self, script: str) -> dict[str, Any]:
        return {"ucx": "1.23.0", "ucx_library": "/x/libucp.so", "error": None}


SPEC = HostSpec("node", connection="ssh", address="a", gpus=[0, 1], rdma_devices=["mlx5_0"])


def table(
    tmp_path, facts: dict[str, Any], **changes: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    fields = {"host": SPEC, "transports": TRANSPORTS, **changes}
    study = make_study(**fields)
    said: list[str] = []
    host = Elsewhere(study.host, {**FACTS, **facts})
    return check_host(study, make_design(study), host, tmp_path, said.append), said


def test_where_nixl_does_not_start_the_table_goes_on_and_says_why_it_may_be(tmp_path) -> None:
    class Hanging(Elsewhere):
        def probe(self, script: str) -> dict[str, Any]:
            raise HostLost(f"{self.label}: probe: ended with status -1: no message")

    study = make_study(host=SPEC, transports=TRANSPORTS)
    host = Hanging(study.host, {**FACTS, "memlock_bytes": 65536})
    said: list[str] = []
    with pytest.raises(UserError, match=r"UCX: probe: ended with status -1.*and 1 more"):
        check_host(study, make_design(study), host, tmp_path, said.append)
    assert any("65536 bytes may be locked" in line for line in said)


def test_the_output_of_nvidia_smi_is_read() -> None:
    assert parse_peers(PEERS) == {"0": {"0": "X", "1": "OK"}, "1": {"0": "OK", "1": "X"}}


def test_a_host_that_has_everything_passes_without_a_word(tmp_path) -> None:
    rows, said = table(
        tmp_path,
        {},
        engine=Engine(memory="VRAM"),
        transports={**TRANSPORTS, "nvlink": NVLINK},
        prompt_tokens=[256],
    )
    assert {row["status"] for row in rows} == {"ok"}
    assert said == []
    assert {row["check"] for row in rows} >= {
        *("connection", "Python", "NIXL", "UCX", "VRAM for the pools", "work folder", "disk here"),
        *("host.gpus", "host.rdma_devices", "GPUs idle", "transport roce", "transport nvlink"),
    }


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"packages": {}}, "NIXL: none of nixl-cu13, nixl-cu12, nixl is installed for /usr/bin"),
        ({"rdma_ports": None}, r"host\.rdma_devices: no mlx5_0; the host has: none"),
        ({"gids": {}}, "transport roce: no GID on mlx5_0/1"),
        (
            {"rdma_ports": [{**FACTS["rdma_ports"][0], "state": "1: DOWN"}]},
            "transport roce: no port is up with link layer Ethernet: mlx5_0/1 1: DOWN Ethernet",
        ),
        (
            {"rdma_ports": [{**FACTS["rdma_ports"][0], "link_layer": "InfiniBand"}]},
            "transport roce: no port is up with link layer Ethernet",
        ),
        ({"memlock_bytes": 8192}, "transport roce: 8192 bytes may be locked, the pools have"),
        (
            {"memory_available_bytes": 10**9},
            "DRAM for the pools: .*workload.concurrency that fits is 0",
        ),
        ({"work_dir_error": "[Errno 30] Read-only"}, "work folder: .*Read-only; set host.work_dir"),
        ({"disk_free_bytes": 10**8}, "work folder: 0.1 GB free at /home/me"),
        ({"port_holders": {"5600": "pid 7 (vllm)"}}, r"port 5600: pid 7 \(vllm\); end it, or set"),
        ({"gpus": FACTS["gpus"][:1]}, r"host\.gpus: no 1; the host has: 0"),
    ],
)
def test_what_is_missing_stops_the_study_in_one_line(tmp_path, facts, message: str) -> None:
    with pytest.raises(UserError, match=f"^host node: {message}") as caught:
        table(tmp_path, facts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"gpu_processes": [{"gpu_uuid": "GPU-1", "pid": "567", "process_name": "python3"}]},
            r"GPUs idle: GPU 1: pid 567 \(python3\)",
        ),
        (
            {"gpus": [{**gpu, "memory.used": "90000"} for gpu in FACTS["gpus"]]},
            "GPUs idle: GPU 0: 90000 MiB in use; GPU 1: ",
        ),
        (
            {"gpu_peers": {"0": {"1": "CNS"}, "1": {"0": "CNS"}}},
            r"transport nvlink: GPU 0 cannot read GPU 1 \(nvidia-smi topo -p2p r: CNS\)",
        ),
    ],
)
def test_gpus_must_be_idle_and_reach_each_other(tmp_path, facts, message: str) -> None:
    with pytest.raises(UserError, match=message):
        table(
            tmp_path,
            facts,
            engine=Engine(memory="VRAM"),
            transports={"nvlink": NVLINK},
            baseline="nvlink",
            prompt_tokens=[256],
        )


def test_a_host_that_is_not_strict_warns_of_a_transport_and_goes_on(tmp_path) -> None:
    spec = replace(SPEC, strict=False, rdma_devices=[])
    rows, said = table(tmp_path, {"rdma_ports": None}, host=spec)
    statuses = {row["check"]: row["status"] for row in rows}
    assert statuses["transport roce"] == "warning"
    assert any("no RDMA device" in line for line in said)


def test_what_joins_processes_of_one_host_is_not_to_be_had_on_two(tmp_path) -> None:
    spec = replace(SPEC, decode=HostSide(address="b"))
    study = make_study(host=spec, prompt_tokens=[256])
    host = Elsewhere(replace(spec, decode=HostSide(), name="node-decode"), FACTS)
    with pytest.raises(UserError, match="transport shm: cma joins processes of one host"):
        check_host(study, make_design(study), host, tmp_path, lambda line: None)


def test_fixed_ports_are_asked_about(tmp_path) -> None:
    study = make_study(host=SPEC, engine=Engine(side_channel_port=5600, rank_pairs=2))
    asked: list[int] = []

    class Asked(Elsewhere):
        def facts(self, ports=()) -> dict[str, Any]:
            asked.extend(ports)
            return super().facts(ports)

    check_host(study, make_design(study), Asked(SPEC, FACTS), tmp_path, lambda line: None)
    assert asked == [5600, 5601]
