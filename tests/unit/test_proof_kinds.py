"""Additions to the proof, each one file that is found by scanning: witness, backend, counter."""

import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docs_commands import read_files
from raw_folders import copy_raw, edit_claim, edit_rows, statuses

from kvroad.engines.nixl import replay_plan
from kvroad.errors import UserError
from kvroad.evidence.counter import counter_kinds
from kvroad.plan import Claim, Serving
from kvroad.proof import judge_cell
from kvroad.proof.judge import judge_raw
from kvroad.proof.witness import witness_kinds
from kvroad.study.compose import compose
from kvroad.study.design import make_design
from kvroad.study.fields import RoadTolerances
from kvroad.study.kinds import BACKENDS, COUNTERS

REPOSITORY = Path(__file__).parents[2]
Add = Callable[[str, str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Give a package one more file, as if it lay in its folder."""
    known = set(sys.modules)

    def forget() -> None:
        witness_kinds.cache_clear()
        counter_kinds.cache_clear()
        vars(BACKENDS).pop("_found", None)
        vars(COUNTERS).pop("_found", None)
        # It makes a witness of each counter when it is imported.
        sys.modules.pop("kvroad.proof.witnesses.counters", None)

    def add_file(place: str, text: str) -> None:
        package, _, name = place.rpartition(".")
        folder = tmp_path / package
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(folder)])
        importlib.invalidate_caches()
        forget()

    yield add_file
    monkeypatch.undo()
    for name in set(sys.modules) - known:
        del sys.modules[name]
    forget()


# -- a witness

FAKE = """
from kvroad.proof.witness import Witness, WitnessKind

FAKE = WitnessKind(
    name="fake",
    hear=lambda evidence: Witness("fake", {status!r}, "nothing", "it saw this", "fake.log:1"),
    expected=lambda claim: "that nothing is wrong",
    place=45,
    {fields}
)
"""


def add_fake(add: Add, status: str, fields: str = "") -> None:
    add("kvroad.proof.witnesses.fake", FAKE.format(status=status, fields=fields))


def without_proof(tmp_path: Path) -> Path:
    """Return a folder in which no count and no byte counter can tell."""
    folder = copy_raw("tcp_four_threads", tmp_path)
    edit_claim(folder, use_counts=False)
    edit_rows(folder / "counters.jsonl", lambda row: {**row, "net": {}})
    return folder


def test_a_witness_that_contradicts_refuses(add: Add, tmp_path: Path):
    add_fake(add, "contradicts")
    outcome = judge_raw(copy_raw("tcp_four_threads", tmp_path))
    assert (outcome.outcome, outcome.where) == ("refused", "fake.log:1")
    assert outcome.reason == "claimed tcp (tcp) but it saw this (fake.log:1)"
    names = [witness.name for witness in outcome.witnesses]
    assert names[-2:] == ["fake", "telemetry"]


def test_a_witness_that_agrees_proves_nothing_by_itself(add: Add, tmp_path: Path):
    folder = without_proof(tmp_path)
    add_fake(add, "agrees")
    outcome = judge_raw(folder)
    assert statuses(outcome)["fake"] == "agrees"
    assert outcome.outcome == "refused"
    assert "no use count and no byte counter is there to confirm it" in outcome.reason


def test_a_witness_proves_where_its_kind_says_so(add: Add, tmp_path: Path):
    folder = without_proof(tmp_path)
    add_fake(add, "agrees", "proves_road=True,")
    assert judge_raw(folder).outcome == "proven"


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [("", "proven"), ("is_mandatory=lambda claim: claim.transport == 'tcp',", "refused")],
)
def test_a_witness_that_must_be_there_refuses_where_it_is_not(
    add: Add, tmp_path: Path, fields: str, outcome: str
):
    add_fake(add, "unavailable", fields)
    assert judge_raw(copy_raw("tcp_four_threads", tmp_path)).outcome == outcome


def test_a_witness_is_not_heard_of_claims_to_which_it_does_not_apply(add: Add, tmp_path: Path):
    add_fake(add, "contradicts", "applies=lambda claim: claim.transport == 'shm',")
    assert "fake" not in statuses(judge_raw(copy_raw("tcp_four_threads", tmp_path)))


# -- a backend

PAGE = read_files("docs/extending.md")
GOOD = "hello\ntoy: carried 1000 bytes over toylink\ntoy: carried 24 bytes over toylink\n"


@pytest.fixture
def toy(add: Add, tmp_path: Path) -> Path:
    """Add the toy, and return a raw folder whose bytes it moved."""
    add("kvroad.proof.backends.toy", PAGE["src/kvroad/proof/backends/toy.py"])
    add("kvroad.proof.witnesses.toy", PAGE["src/kvroad/proof/witnesses/toy.py"])
    folder = copy_raw("shm_four_threads", tmp_path)
    fields = {"transport": "toy", "backend": "toy", "roads": ["toylink"], "use_counts": False}
    edit_claim(folder, environment={"TOY_ROADS": "toylink"}, **fields)
    for log in folder.glob("*.log"):
        log.write_text(GOOD)
    return folder


def test_a_road_of_another_backend_is_proven_by_its_own_lines(toy: Path):
    outcome = judge_raw(toy)
    assert (outcome.outcome, outcome.seen) == ("proven", "toylink")
    assert outcome.reason.startswith("reads went by 1024 bytes over toylink; toy_lines, ")
    assert (outcome.where, outcome.quote) == ("decode-0.log:2", GOOD.splitlines()[1])
    heard = statuses(outcome)
    assert not {"environment", "protocol_table", "use_counts"} & set(heard)
    assert heard["telemetry"] == "agrees"


def test_its_lines_prove_where_no_counter_can_tell(toy: Path):
    edit_rows(toy / "counters.jsonl", lambda row: {**row, "net": {}})
    assert judge_raw(toy).outcome == "proven"


def test_a_wrong_road_of_another_backend_is_refused(toy: Path):
    (toy / "decode-0.log").write_text(GOOD.replace("24 bytes over toylink", "24 bytes over toymud"))
    outcome = judge_raw(toy)
    assert (outcome.outcome, outcome.seen) == ("refused", "toylink+toymud")
    assert outcome.reason == (
        "claimed toy (toylink) but 1024 bytes over toylink+toymud (decode-0.log:3)"
    )


def test_another_backend_without_its_lines_is_refused(toy: Path):
    (toy / "decode-0.log").write_text("hello\n")
    outcome = judge_raw(toy)
    assert (outcome.outcome, outcome.seen) == ("refused", "unknown")
    assert outcome.reason == (
        "claimed toy (toylink) but the toy tells of no transfer (decode-0.log)"
    )


def test_another_backend_that_does_not_start_is_refused_with_its_own_word(toy: Path):
    (toy / "pulls-0.jsonl").unlink()
    log = toy / "decode-0.log"
    log.write_text("E0101 nixl: NIXL_ERR_BACKEND\ntoy: error: NIXL_ERR_BACKEND, out of mud\n")
    outcome = judge_raw(toy)
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "none", True)
    assert outcome.reason.endswith("nothing started: NIXL_ERR_BACKEND, out of mud (decode-0.log:2)")


def compose_toy(conf: Path, *overrides: str):
    shutil.copytree(REPOSITORY / "conf", conf)
    (conf / "transport/toy.yaml").write_text(PAGE["conf/transport/toy.yaml"])
    return compose(["study=smoke", "transport=[tcp,toy]", *overrides], conf)


def test_a_transport_of_another_backend_is_planned(toy: Path, tmp_path: Path):
    study = compose_toy(tmp_path / "conf")
    design = make_design(study)
    launch = next(launch for launch in design.launches if launch.arm.label == "toy")
    assert launch.cells[0].identity["transport"]["backend"] == "toy"
    claim = replay_plan(study, launch, launch.cells, "me").claim
    assert (claim.backend, claim.environment) == ("toy", {"TOY_ROADS": "toylink"})
    assert "UCX_TLS" not in launch.arm.environment
    other = next(launch for launch in design.launches if launch.arm.label == "tcp")
    assert "backend" not in other.cells[0].identity["transport"]


def test_a_backend_refuses_what_it_does_not_have(toy: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"^transport\.toy\.roads: 'rc' is not a road of the toy$"):
        compose_toy(tmp_path / "conf", "transport.toy.roads=[rc]")


def test_an_unknown_backend_is_refused_with_the_nearest(tmp_path: Path):
    with pytest.raises(UserError, match=r"backend: 'toy' is not allowed \(allowed: ucx\)"):
        compose_toy(tmp_path / "conf")


def test_a_plan_of_before_there_were_backends_is_of_ucx(tmp_path: Path):
    plan = json.loads((copy_raw("tcp_four_threads", tmp_path) / "plan.json").read_text())
    assert "backend" not in plan["claim"]
    assert judge_raw(tmp_path / "tcp_four_threads").seen == "tcp"


# -- a counter


def test_the_witness_of_the_page_refuses_a_launch_with_two_ends(add: Add, tmp_path: Path):
    add("kvroad.proof.witnesses.one_end", PAGE["src/kvroad/proof/witnesses/one_end.py"])
    folder = copy_raw("tcp_four_threads", tmp_path)
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["one_end"]) == ("proven", "agrees")
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps({"event": "end", "status": "complete"}) + "\n")
    assert judge_raw(folder).reason.endswith("the launch has 2 ends (events.jsonl)")


def test_a_counter_brings_its_witness(add: Add, tmp_path: Path):
    add("kvroad.evidence.counters.disk", PAGE["src/kvroad/evidence/counters/disk.py"])
    folder = copy_raw("shm_four_threads", tmp_path)
    sectors = itertools.count(step=400_000)

    def count(row):
        return {**row, "disk": {"sda": {"read": next(sectors), "written": 0}}}

    edit_rows(folder / "counters.jsonl", count)
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["disk_bytes"]) == ("refused", "contradicts")
    assert "disk counters saw 614400000 bytes" in outcome.reason
    edit_claim(folder, counters=["disk"])
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["disk_bytes"]) == ("proven", "agrees")
    study = compose(["study=smoke", "transport.tcp.counters=[disk]"], REPOSITORY / "conf")
    assert study.transports["tcp"].counters == ["disk"]


# -- the door, and the page


def cell_folder(tmp_path: Path) -> Path:
    raw = copy_raw("tcp_four_threads", tmp_path)
    cell = json.loads((raw / "plan.json").read_text())["cells"][0]["cell"]
    raw.rename(tmp_path / "raw")
    (tmp_path / "cell.json").write_text(json.dumps({"cell": cell}))
    return tmp_path


def test_a_cell_is_judged_by_its_folder(tmp_path: Path):
    folder = cell_folder(tmp_path)
    assert judge_cell(folder).outcome == "proven"
    strict = RoadTolerances(carried_at_least=1.5, not_carried_at_most=0.1)
    assert judge_cell(folder, strict).outcome == "refused"
    (folder / "cell.json").write_text(json.dumps({"cell": "of-another-launch"}))
    assert judge_cell(folder).outcome == "refused"


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"cell": null}'])
def test_a_cell_without_its_facts_is_refused_in_one_line(tmp_path: Path, text: str | None):
    folder = cell_folder(tmp_path)
    (folder / "cell.json").unlink()
    if text is not None:
        (folder / "cell.json").write_text(text)
    with pytest.raises(UserError) as raised:
        judge_cell(folder)
    assert str(raised.value) == f"{folder / 'cell.json'}: missing, or not the facts of a cell"


REPLAY = Claim("tcp", ["tcp"], "read", "DRAM", 1, {})
CLAIMS = {
    "replay": REPLAY,
    "serving": replace(REPLAY, serving=Serving(1, 1, 1)),
    "alone": replace(REPLAY, serving=Serving(1, 1, 1, is_aggregated=True)),
}


def test_the_page_lists_every_witness_as_it_is_declared():
    text = (REPOSITORY / "docs/witnesses.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    declared = []
    for kind in witness_kinds():
        heard = [name for name, claim in CLAIMS.items() if kind.applies(claim)]
        needed = {kind.is_mandatory(CLAIMS[name]) for name in heard}
        assert len(needed) == 1, kind.name
        words = ["yes" if is_so else "no" for is_so in (*needed, kind.proves_road)]
        declared.append([f"`{kind.name}`", ", ".join(heard), *words])
    assert [row[:4] for row in rows] == declared


def test_the_plan_prints_what_is_expected_of_every_witness_that_is_needed():
    for claim in CLAIMS.values():
        for kind in witness_kinds():
            assert kind.expected(claim) or not kind.applies(claim) or not kind.is_mandatory(claim)
