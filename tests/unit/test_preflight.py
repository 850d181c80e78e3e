"""The preflight table from the facts of hosts that are not this one."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies import TRANSPORTS, make_study

from kvroad.agent.survey import parse_peers
from kvroad.errors import UserError
from kvroad.hosts import AgentHost, HostLost
from kvroad.measure.preflight import check_host
from kvroad.study.design import make_design
from kvroad.study.fields import Engine, HostSide, Transport
from kvroad.study.fields import Host as HostSpec
from kvroad.study.serving import HostServing, ServingOptions

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


class Elsewhere(AgentHost):
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


class Serving:
    """A host whose serving programs and model lie in a folder, for the real probe to find."""

    def __init__(self, folder: Path) -> None:
        self.programs = [folder / "engines" / "python", folder / "load" / "aiperf"]
        self.model = folder / "model"
        for path in (*self.programs, self.model / "config.json"):
            path.parent.mkdir(parents=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        python, aiperf = map(str, self.programs)
        self.spec = replace(SPEC, serving=HostServing(python, aiperf, str(self.model)))

    def check(self, folder: Path, **options: Any) -> list[dict[str, Any]]:
        class Probed(Elsewhere):
            def probe(self, script: str) -> dict[str, Any]:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(script, {})
                found: dict[str, Any] = json.loads(out.getvalue())
                return found

        engine = Engine(name="dynamo", serving=ServingOptions(**options))
        study = make_study(host=self.spec, engine=engine, prompt_tokens=[256])
        return check_host(
            study, make_design(study), Probed(self.spec, FACTS), folder, lambda _: None
        )


def test_a_host_that_has_the_serving_programs_names_them(tmp_path) -> None:
    serving = Serving(tmp_path)
    rows = {row["check"]: row for row in serving.check(tmp_path / "out")}
    assert rows["serving engines"]["status"] == "ok"
    for path in (*serving.programs, serving.model):
        assert str(path) in rows["serving engines"]["found"]
    assert "NIXL" not in rows


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "engines/python",
            r"host\.serving\.python: no program \S+/engines/python; set it to the interpreter",
        ),
        (
            "load/aiperf",
            r"host\.serving\.aiperf: no program \S+/load/aiperf; set it to the program of aiperf's",
        ),
        (
            "model/config.json",
            r"host\.serving\.model: no config\.json in \S+/model; set it to the folder of weights",
        ),
    ],
)
def test_a_missing_serving_program_is_one_line_with_what_where_and_its_fix(
    tmp_path, missing: str, message: str
) -> None:
    serving = Serving(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=f"^host node: serving engines: {message}") as caught:
        serving.check(tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_what_the_load_generator_of_vllm_does_not_need_is_not_asked_for(tmp_path) -> None:
    serving = Serving(tmp_path)
    (tmp_path / "load/aiperf").unlink()
    rows = {row["check"]: row for row in serving.check(tmp_path / "out", tool="vllm_bench")}
    assert rows["serving engines"]["status"] == "ok"


def test_a_host_that_is_lost_while_it_is_asked_is_told(tmp_path) -> None:
    class Lost(Elsewhere):
        def probe(self, script: str) -> dict[str, Any]:
            raise HostLost(f"{self.label}: probe: no answer")

    engine = Engine(name="dynamo", serving=ServingOptions())
    study = make_study(host=SPEC, engine=engine, prompt_tokens=[256])
    with pytest.raises(UserError, match=r"^host node: serving engines: probe: no answer"):
        check_host(study, make_design(study), Lost(SPEC, FACTS), tmp_path, lambda _: None)
