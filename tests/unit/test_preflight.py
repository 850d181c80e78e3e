import json
from pathlib import Path
from typing import Any

import pytest
from studies import make_study

from kvroad.design import make_design
from kvroad.errors import UserError
from kvroad.preflight import check_host
from kvroad.study import Engine, Host

FACTS = {
    "packages": {"nixl-cu12": "1.3.1"},
    "executable": "/usr/bin/python3",
    "memory_available_bytes": 10_000_000_000,
    "gpus": None,
}


class Facts:
    def __init__(self, **changes: Any) -> None:
        self.values = {**FACTS, **changes}

    def facts(self) -> dict[str, Any]:
        return self.values

    def run(self, plan: Any, raw_dir: Path, on_event: Any) -> None:
        raise AssertionError("nothing is launched by a check")


def check(tmp_path: Path, facts: Facts, **changes: Any) -> list[dict[str, Any]]:
    study = make_study(**changes)
    return check_host(study, make_design(study), facts, tmp_path)


def test_a_host_that_has_all_passes_and_leaves_the_table(tmp_path: Path) -> None:
    rows = check(tmp_path, Facts())
    assert [row["check"] for row in rows] == ["NIXL", "DRAM for the pools", "disk for the results"]
    assert json.loads((tmp_path / "hosts/local/preflight.json").read_text()) == rows


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
    with pytest.raises(UserError, match=r"largest workload\.concurrency that fits is 3$"):
        check(tmp_path, facts)


def test_the_fullest_gpu_decides(tmp_path: Path) -> None:
    gpus = [
        {"index": str(i), "memory.total": "143771", "memory.used": used}
        for i, used in enumerate(["0", "143000"])
    ]
    host = Host("gpu", gpus=[0, 1])
    with pytest.raises(UserError, match="VRAM for the pools"):
        check(tmp_path, Facts(gpus=gpus), host=host, engine=Engine(memory="VRAM"))
