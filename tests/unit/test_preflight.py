import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies import TRANSPORTS, make_study

from kvroad.design import make_design
from kvroad.errors import UserError
from kvroad.preflight import check_host
from kvroad.study import Engine, Host

FACTS = {
    "python": "3.12.1",
    "packages": {"nixl-cu12": "1.3.1"},
    "executable": "/usr/bin/python3",
    "memory_available_bytes": 10_000_000_000,
    "memlock_bytes": None,
    "work_dir": "/var/tmp/kvroad",
    "work_dir_error": None,
    "disk_free_bytes": 10_000_000_000,
    "port_holders": {},
    "gpus": None,
    "gpu_processes": None,
    "gpu_peers": None,
    "rdma_ports": None,
    "gids": {},
    "interfaces": ["lo"],
}


class Facts:
    """A host that answers with given facts and launches nothing."""

    label = "host here"

    def __init__(self, **changes: Any) -> None:
        self.values = {**FACTS, **changes}
        self.host = make_study().host

    def hosts(self) -> list[Any]:
        return [self]

    def facts(self, ports: Any = ()) -> dict[str, Any]:
        return self.values

    def probe(self, script: str) -> dict[str, Any]:
        return {"error": None, "ucx": "1.23.0", "ucx_library": "/lib/libucp.so"}


def check(tmp_path: Path, facts: Facts, **changes: Any) -> list[dict[str, Any]]:
    study = make_study(**changes)
    facts.host = study.host
    return check_host(study, make_design(study), facts, tmp_path, lambda line: None)


def test_a_host_that_has_all_passes_and_leaves_the_table(tmp_path: Path) -> None:
    rows = check(tmp_path, Facts())
    assert {row["status"] for row in rows} == {"ok"}
    written = json.loads((tmp_path / "hosts/local/preflight.json").read_text())
    assert [row["check"] for row in written] == [row["check"] for row in rows]


def test_no_nixl_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/usr/bin/python3 -m pip install --no-deps nixl-cu13"):
        check(tmp_path, Facts(packages={}))


def test_another_nixl_than_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"nixl-cu12 1\.3\.1; engine\.nixl_version asks for 1\.5\.1"
    ):
        check(tmp_path, Facts(), engine=Engine(nixl_version="1.5.1"))


def test_too_little_memory_names_the_concurrency_that_fits(tmp_path: Path) -> None:
    # One pull of 16k tokens is 558 MB; both sides hold one per pull in flight.
    one = 2 * 4260 * 131072
    facts = Facts(memory_available_bytes=int(3.5 * one / 0.9))
    with pytest.raises(UserError, match=r"largest workload\.concurrency that fits is 3"):
        check(tmp_path, facts)


def test_the_fullest_gpu_decides(tmp_path: Path) -> None:
    gpus = [
        {"index": str(i), "uuid": f"G{i}", "memory.total": "143771", "memory.used": used}
        for i, used in enumerate(["0", "143000"])
    ]
    host = Host("gpu", gpus=[0, 1])
    with pytest.raises(UserError, match="VRAM for the pools"):
        check(tmp_path, Facts(gpus=gpus), host=host, engine=Engine(memory="VRAM"))


def test_a_transport_that_cannot_be_had_is_a_warning_unless_the_host_is_strict(
    tmp_path: Path,
) -> None:
    transports = {"roce": TRANSPORTS["roce"]}
    lenient = replace(make_study().host, strict=False)
    rows = check(tmp_path, Facts(), transports=transports, baseline="roce", host=lenient)
    told = {row["check"]: row for row in rows}["transport roce"]
    assert (told["status"], told["found"]) == ("warning", "no RDMA device (/sys/class/infiniband)")
    strict = replace(make_study().host, strict=True)
    with pytest.raises(UserError, match="transport roce: no RDMA device"):
        check(tmp_path, Facts(), transports=transports, baseline="roce", host=strict)


def test_a_held_port_names_its_holder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"port 5600: pid 7 \(python\)"):
        check(tmp_path, Facts(port_holders={"5600": "pid 7 (python)"}))
