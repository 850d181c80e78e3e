"""`kvroad doctor` on a host, with raw folders of real launches in place of one."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raw_folders import SAMPLES, edit_rows
from studies import make_study

from kvroad.measure.trial_pull import ArmFinding, HostTable, examine_arms, examine_hosts, is_fit
from kvroad.plan import Plan
from kvroad.study.design import make_design
from kvroad.study.kinds import HostFinding

RECORDED = {
    "shm": "shm_four_threads",
    "tcp": "tcp_four_threads",
    "roce": "roce_falls_to_tcp",
}
LACKS = HostFinding("transport roce", "warning", "no RDMA device", "load the NIC's driver")


class RecordedHost:
    """Answers each plan with the raw folder of a launch that was recorded for its transport.

    ``left`` names a recorded launch that an earlier doctor has left there for every plan.
    """

    def __init__(self, left: str | None = None, **recorded: str) -> None:
        self.left, self.recorded = left, {**RECORDED, **recorded}
        self.plans: list[Plan] = []
        self.label = "host local"

    def run(self, plan: Plan, raw_dir: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.plans.append(plan)
        shutil.rmtree(raw_dir, ignore_errors=True)
        if self.left:
            self._lay_down(self.left, plan, raw_dir)
            self.left = None
            on_event({"event": "recovered", "host": "local"})
            return
        self._lay_down(self.recorded[plan.claim.transport], plan, raw_dir)

    def _lay_down(self, name: str, plan: Plan, raw_dir: Path) -> None:
        source = SAMPLES / "raw" / name
        cell = json.loads((source / "plan.json").read_text())["cells"][0]["cell"]
        shutil.copytree(source, raw_dir)
        for path in raw_dir.iterdir():
            path.write_text(path.read_text().replace(cell, plan.cells[0].cell))


def examine(host: RecordedHost, folder: Path, *transports: str) -> list[ArmFinding]:
    known = make_study().transports | {"roce": ROCE}
    study = make_study(transports={name: known[name] for name in transports}, launches=2)
    table = HostTable("host local", [HostFinding("NIXL", "ok", "1.5.1"), LACKS])
    said: list[ArmFinding] = []
    found = examine_arms(study, host, [table], folder, said.append)  # type: ignore[arg-type]
    assert said == found
    return found


ROCE = replace(
    make_study().transports["tcp"],
    roads=["rc_mlx5", "rc_verbs"],
    ucx_tls=["rc", "cuda_copy", "tcp"],
    counters=["nic"],
    link_layer="Ethernet",
)


def test_one_launch_of_each_arm_and_its_road(tmp_path: Path) -> None:
    host = RecordedHost()
    shm, tcp = examine(host, tmp_path, "shm", "tcp")
    assert [plan.claim.transport for plan in host.plans] == ["shm", "tcp"]
    assert (shm.is_proven, shm.outcome.seen) == (True, "cma")
    assert (tcp.is_proven, tcp.outcome.seen) == (True, "tcp")
    assert (tcp.causes, tcp.host_says) == ([], "")


def test_a_wrong_road_has_its_cause_and_what_the_host_lacks(tmp_path: Path) -> None:
    (roce,) = examine(RecordedHost(), tmp_path, "roce")
    assert (roce.is_proven, roce.outcome.outcome, roce.outcome.seen) == (False, "refused", "tcp")
    assert "UCX has no 'rc','cuda_copy' on this host" in roce.causes[0].cause
    assert roce.causes[0].where == "decode-0.log:2"
    assert roce.host_says == "host local: no RDMA device; load the NIC's driver"


def test_what_an_earlier_doctor_left_is_not_taken_for_the_pull(tmp_path: Path) -> None:
    host = RecordedHost(left="tcp_four_threads", tcp="shm_four_threads")
    (tcp,) = examine(host, tmp_path, "tcp")
    assert len(host.plans) == 2
    assert tcp.outcome.seen == "cma", "the second run counts, not what was left"


def test_bytes_that_arrived_wrong_are_no_road(tmp_path: Path) -> None:
    class Spoiled(RecordedHost):
        def _lay_down(self, name: str, plan: Plan, raw_dir: Path) -> None:
            super()._lay_down(name, plan, raw_dir)
            edit_rows(raw_dir / "pulls-0.jsonl", lambda row: {**row, "verified": False})

    (shm,) = examine(Spoiled(), tmp_path, "shm")
    assert (shm.is_proven, shm.outcome.outcome) == (False, "failed")


@pytest.mark.parametrize(
    ("finding", "fit"),
    [
        (HostFinding("NIXL", "refused", "none is installed"), False),
        (HostFinding("transport roce", "refused", "no RDMA device"), True),
        (HostFinding("host.interfaces", "warning", "no eth9"), True),
    ],
)
def test_only_what_every_pull_needs_keeps_one_from_being_tried(
    finding: HostFinding, fit: bool
) -> None:
    assert is_fit([HostTable("host local", [finding])]) == fit


def test_every_host_of_a_pair_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair:
        def hosts(self) -> list[RecordedHost]:
            return [RecordedHost(), RecordedHost()]

    looked = []
    monkeypatch.setattr(
        "kvroad.measure.trial_pull.findings_of", lambda *args: looked.append(args[2]) or [LACKS]
    )
    study = make_study()
    tables = examine_hosts(study, make_design(study), Pair())  # type: ignore[arg-type]
    assert (len(looked), [table.findings for table in tables]) == (2, [[LACKS], [LACKS]])
