"""Measuring with a host that hands over recorded raw folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from studies import TRANSPORTS, make_study

from kvroad.agent.manifest import write_manifest
from kvroad.cells import cell_dir, outcome_of
from kvroad.design import make_design
from kvroad.hosts import HostLost
from kvroad.measure import Measurement, measure_launch
from kvroad.plan import Plan, dumps

ROCE_ON_TCP = Path(__file__).parent.parent / "data/samples/raw"


class RecordedHost:
    """Lays down a raw folder recorded from a real launch, under the plan it was given."""

    def __init__(self, sample: Path, status: str = "") -> None:
        self.sample, self.status = sample, status
        self.plans: list[Plan] = []

    def facts(self) -> dict[str, Any]:
        return {}

    def run(self, plan: Plan, raw_dir: Path, on_event) -> None:
        self.plans.append(plan)
        shutil.copytree(self.sample, raw_dir)
        recorded = json.loads((raw_dir / "plan.json").read_text())
        asked = json.loads(dumps(plan))
        old, new = recorded["cells"][0]["cell"], asked["cells"][0]["cell"]
        for path in raw_dir.iterdir():
            if path.is_file():
                path.write_text(path.read_text().replace(old, new))
        if self.status:
            row = {"event": "end", "status": self.status, "step": "stop", "reason": "cut off"}
            with open(raw_dir / "events.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
        write_manifest(raw_dir)


def sample(word: str) -> Path:
    return next(p for p in sorted(ROCE_ON_TCP.iterdir()) if word in p.name)


def measurement(tmp_path: Path, host: RecordedHost, arm: str, run_id: str = "r") -> Measurement:
    study = make_study(
        transports={arm: TRANSPORTS[arm]}, baseline=arm, prompt_tokens=[4096], launches=2
    )
    said: list[str] = []
    return Measurement(study, make_design(study), host, tmp_path, run_id, tmp_path, said.append)


def test_a_refused_launch_is_not_repeated_in_the_same_run(tmp_path: Path) -> None:
    host = RecordedHost(sample("roce"))
    with_ = measurement(tmp_path, host, "roce")
    first, second = with_.design.launches
    measure_launch(with_, first.id, 1)
    outcome = outcome_of(tmp_path, first.cells[0].id)
    assert outcome is not None
    assert (outcome["outcome"], outcome["seen"], outcome["repeats"]) == ("refused", "tcp", True)
    measure_launch(with_, second.id, 1)
    assert len(host.plans) == 1
    repeated = outcome_of(tmp_path, second.cells[0].id)
    assert repeated is not None
    assert repeated["outcome"] == "refused"
    assert f"as in {first.cells[0].id}" in repeated["reason"]
    # A later run tries again.
    measure_launch(measurement(tmp_path, host, "roce", "later"), second.id, 2)
    assert len(host.plans) == 2
    assert (cell_dir(tmp_path, second.cells[0].id) / "attempts/1/outcome.json").exists()


def test_a_proven_cell_is_never_measured_again(tmp_path: Path) -> None:
    host = RecordedHost(sample("shm"))
    with_ = measurement(tmp_path, host, "shm")
    launch = with_.design.launches[0]
    cell = launch.cells[0].id
    cell_dir(tmp_path, cell).mkdir(parents=True)
    record = {"outcome": "proven", "attempt": 1}
    (cell_dir(tmp_path, cell) / "outcome.json").write_text(json.dumps(record))
    receipt = measure_launch(with_, launch.id, 1)
    assert host.plans == []
    assert json.loads(receipt.read_text())["cells"] == {cell: "proven"}


def test_an_interrupted_launch_leaves_no_outcome(tmp_path: Path) -> None:
    with_ = measurement(tmp_path, RecordedHost(sample("shm"), status="interrupted"), "shm")
    launch = with_.design.launches[0]
    with pytest.raises(HostLost, match="cut off"):
        measure_launch(with_, launch.id, 1)
    assert outcome_of(tmp_path, launch.cells[0].id) is None
