import json
from pathlib import Path

import pytest
from studies import make_study

from kvroad.engines import pool_bytes
from kvroad.engines.nixl import replay_plan
from kvroad.errors import UserError
from kvroad.plan import PlanError, dumps, essence, first_difference, loads
from kvroad.study.design import make_design
from kvroad.study.fields import Engine, Host, RoadTolerances


def plan_of(**changes: object):
    study = make_study(**changes)
    launch = make_design(study).launches[0]
    return replay_plan(study, launch, launch.cells, "somebody")


def test_a_plan_comes_back_as_it_went() -> None:
    plan = plan_of()
    assert loads(dumps(plan)) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a plan"),
        ("[]", "not a plan: no JSON object"),
        ('{"version": 99}', "plan version 99 is not the agent's version 1"),
    ],
)
def test_what_is_no_plan_of_this_version_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        loads(text)


def test_an_unknown_field_is_named_with_its_place() -> None:
    data = json.loads(dumps(plan_of()))
    data["cells"][0]["phases"][0]["surprise"] = 1
    with pytest.raises(PlanError, match=r"plan\.cells\[0\]\.phases\[0\]: unknown field 'surprise'"):
        loads(json.dumps(data))


def test_a_read_is_posted_by_decode_and_a_write_by_prefill() -> None:
    read, write = plan_of(), plan_of(engine=Engine(operation="write"))
    assert [p.name for p in read.processes] == ["prefill-0", "decode-0"]
    assert [p.name for p in write.processes] == ["decode-0", "prefill-0"]
    assert read.cells[0].phases[0].command.processes == ["decode-0"]
    assert write.cells[0].phases[0].command.processes == ["prefill-0"]
    assert write.claim.operation == "write"


def test_one_pair_per_rank_and_all_ranks_pull_at_once() -> None:
    plan = plan_of(engine=Engine(rank_pairs=4))
    assert len(plan.processes) == 8
    assert plan.cells[0].phases[1].command.processes == [f"decode-{r}" for r in range(4)]
    assert plan.processes[0].argv[-1] == "{port:side-0},{port:side-1},{port:side-2},{port:side-3}"


def test_the_payload_of_the_warm_up_is_what_the_layout_says() -> None:
    plan = plan_of(prompt_tokens=[4096])
    warmup = plan.cells[0].phases[0]
    assert warmup.payload_bytes == 2 * 2340 * 131072
    assert [p.payload_bytes for p in plan.cells[0].phases[1:]] == [None, None]


def test_pools_hold_all_pulls_in_flight_on_both_sides() -> None:
    study = make_study(prompt_tokens=[16384])
    launch = make_design(study).launches[0]
    assert pool_bytes(study, launch) == 2 * 4 * 4260 * 131072


def test_gpu_memory_needs_two_gpus_per_pair() -> None:
    host = Host("h", gpus=[0, 1, 2])
    engine = Engine(memory="VRAM", rank_pairs=2)
    with pytest.raises(UserError, match=r"needs 4 GPUs; host\.gpus of h lists 3"):
        plan_of(host=host, engine=engine)
    config = json.loads(plan_of(host=Host("h", gpus=[4, 5, 6, 7]), engine=engine).files[-1].text)
    assert (config["prefill_gpus"], config["decode_gpus"]) == ([4, 5], [6, 7])


def test_every_file_of_the_replay_travels_with_the_plan() -> None:
    sent = {f.path for f in plan_of().files}
    folder = Path(__import__("kvroad").__file__).parent / "engines" / "replay"
    assert sent == {"replay.json"} | {f"replay/{p.name}" for p in folder.glob("*.py")}


def test_the_essence_leaves_out_who_asks_where_it_listens_and_how_long_it_waits() -> None:
    plan = plan_of()
    study = make_study(
        engine=Engine(start_timeout_s=1.0, phase_timeout_s=2.0, stop_timeout_s=3.0),
        host=Host("local", interfaces=["lo"], env={"UCX_NET_DEVICES": "lo"}, bind_address="::1"),
        road=RoadTolerances(carried_at_least=0.9),
    )
    launch = make_design(study).launches[0]
    other = replay_plan(study, launch, launch.cells, "somebody else")
    assert other != plan
    assert essence(other) == essence(plan)
    assert first_difference(essence(plan), essence(other)) is None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"engine": Engine(num_threads=0)}, "plan.cells[0].cell"),
        ({"host": Host("local", interfaces=["eth0"])}, "plan.cells[0].cell"),
    ],
)
def test_two_plans_differ_where_they_measure_something_else(change, where: str) -> None:
    one, other = essence(plan_of()), essence(plan_of(**change))
    said = first_difference(one, other)
    assert said is not None
    assert said.startswith(f"{where}: ")


def test_a_difference_is_told_by_its_place_and_both_values() -> None:
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "plan.a[1].b: 2 is not 3"
    assert first_difference({"a": [1]}, {"a": [1, 2]}) == "plan.a: [1] is not [1, 2]"
    assert first_difference({}, {"a": 1}) == "plan.a: None is not 1"
