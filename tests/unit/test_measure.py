"""Measuring with a host that hands over recorded raw folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from studies import TRANSPORTS, make_study

from kvroad.agent.manifest import write_manifest
from kvroad.hosts import HostLost
from kvroad.measure.launch import measure_launch, measure_on_host
from kvroad.measure.lost_hosts import lost_because
from kvroad.measure.measuring_run import MeasuringRun
from kvroad.plan import Plan, dumps
from kvroad.results import cell_dir, next_attempt, outcome_of
from kvroad.study.design import make_design
from kvroad.study.fields import Host
from kvroad.study.sides import on_host

pytestmark = pytest.mark.usefixtures("no_git")

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


def measurement(tmp_path: Path, host: RecordedHost, arm: str, run_id: str = "r") -> MeasuringRun:
    study = make_study(
        transports={arm: TRANSPORTS[arm]}, baseline=arm, prompt_tokens=[4096], launches=2
    )
    said: list[str] = []
    return MeasuringRun(study, make_design(study), host, tmp_path, run_id, tmp_path, said.append)


def test_a_refused_launch_is_not_repeated_in_the_same_run(tmp_path: Path) -> None:
    host = RecordedHost(sample("roce"))
    run = measurement(tmp_path, host, "roce")
    first, second = run.design.launches
    measure_launch(run, first.id, 1)
    outcome = outcome_of(tmp_path, first.cells[0].id)
    assert outcome is not None
    assert (outcome["outcome"], outcome["seen"], outcome["repeats"]) == ("refused", "tcp", True)
    measure_launch(run, second.id, 1)
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
    run = measurement(tmp_path, host, "shm")
    launch = run.design.launches[0]
    cell = launch.cells[0].id
    cell_dir(tmp_path, cell).mkdir(parents=True)
    record = {"outcome": "proven", "attempt": 1}
    (cell_dir(tmp_path, cell) / "outcome.json").write_text(json.dumps(record))
    receipt = measure_launch(run, launch.id, 1)
    assert host.plans == []
    assert json.loads(receipt.read_text())["cells"] == {cell: "proven"}


def test_an_interrupted_launch_leaves_no_outcome(tmp_path: Path) -> None:
    run = measurement(tmp_path, RecordedHost(sample("shm"), status="interrupted"), "shm")
    launch = run.design.launches[0]
    with pytest.raises(HostLost, match="cut off"):
        measure_launch(run, launch.id, 1)
    assert outcome_of(tmp_path, launch.cells[0].id) is None


class TestOneOfSeveralHosts:
    """A host that fails loses its cells for this run; the next run measures them."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> MeasuringRun:
        hosts = [Host("a", work_dir=str(tmp_path / "file")), Host("b")]
        study = make_study(host=hosts[0], hosts=hosts, prompt_tokens=[4096])
        (tmp_path / "file").write_text("no folder")
        return MeasuringRun(
            on_host(study, "a"), make_design(study), None, tmp_path, "r", tmp_path, print
        )

    def of(self, run: MeasuringRun, host: str) -> list[str]:
        return [x.id for x in run.design.launches if x.host == host]

    def test_its_cells_fail_with_the_reason_and_the_job_does_not(self, run: MeasuringRun) -> None:
        launch = self.of(run, "a")[0]
        receipt = measure_on_host(run, launch, 1, is_one_of_several=True)
        assert json.loads(receipt.read_text())["cells"] == {launch: "failed"}
        outcome = outcome_of(run.results_dir, launch)
        assert outcome is not None
        assert outcome["reason"].startswith("host a failed, its unfinished blocks are lost: host a")
        assert "work folder" in outcome["reason"]
        identity = json.loads((cell_dir(run.results_dir, launch) / "cell.json").read_text())
        assert identity["identity"]["host"]["name"] == "a"

    def test_it_is_not_asked_again_in_this_run_but_in_the_next(self, run: MeasuringRun) -> None:
        first, second, *_ = self.of(run, "a")
        measure_on_host(run, first, 1, is_one_of_several=True)
        Path(run.study.host.work_dir or "").unlink()
        measure_on_host(run, second, 1, is_one_of_several=True)
        outcome = outcome_of(run.results_dir, second)
        assert outcome is not None
        assert "work folder" in outcome["reason"]
        assert lost_because(run.results_dir, "r", "a") is not None
        assert lost_because(run.results_dir, "another run", "a") is None
        assert lost_because(run.results_dir, "r", "b") is None
        assert next_attempt(run.results_dir, [first], "unproven") == 2

    def test_the_only_host_fails_the_job(self, run: MeasuringRun) -> None:
        with pytest.raises(HostLost):
            measure_on_host(run, self.of(run, "a")[0], 1, is_one_of_several=False)
        assert outcome_of(run.results_dir, self.of(run, "a")[0]) is None


def test_an_arm_refused_on_one_host_is_launched_on_another(tmp_path: Path) -> None:
    hosts = [Host("a"), Host("b")]
    study = make_study(
        host=hosts[0],
        hosts=hosts,
        transports={"roce": TRANSPORTS["roce"]},
        baseline="roce",
        prompt_tokens=[4096],
    )
    host = RecordedHost(sample("roce"))
    for launch in make_design(study).launches:
        run = MeasuringRun(
            on_host(study, launch.host), make_design(study), host, tmp_path, "r", tmp_path, print
        )
        measure_launch(run, launch.id, 1)
    asked = [plan.launch for plan in host.plans]
    assert asked == [x.id for x in make_design(study).launches if x.block in (0, 1)]
