import itertools
from collections import Counter
from dataclasses import replace

import pytest
from studies import TRANSPORTS, make_study

from kvroad.study.design import contrast_pairs, design_facts, make_design
from kvroad.study.fields import Engine, Host, TransportOverride, Variant, Workload


def test_two_arms_run_ab_ba_ba_ab_at_each_prompt_length() -> None:
    design = make_design(make_study())
    for length in (4096, 8192, 16384):
        arms = [c.arm for c in design.cells if c.prompt_tokens == length]
        rows = ["".join(arms[i : i + 2]) for i in range(0, len(arms), 2)]
        assert Counter(rows) == {"shmtcp": 2, "tcpshm": 2}


def test_the_arms_of_a_prompt_length_run_next_to_each_other_block_by_block() -> None:
    design = make_design(make_study())
    cells = design.cells
    assert [c.block for c in cells] == sorted(c.block for c in cells)
    pairs = zip(cells[::2], cells[1::2], strict=True)
    assert all(a.prompt_tokens == b.prompt_tokens and a.block == b.block for a, b in pairs)


@pytest.mark.parametrize("cells_per_launch", ["one", "all"])
def test_an_arm_may_be_measured_at_some_lengths_only(cells_per_launch: str) -> None:
    engine = Engine(cells_per_launch=cells_per_launch)
    whole = make_design(make_study(engine=engine))
    design = make_design(make_study(engine=engine, prompt_tokens_of={"tcp": [8192]}))
    assert all(launch.cells for launch in design.launches)
    left_out = {c.id for c in whole.cells if c.arm == "tcp" and c.prompt_tokens != 8192}
    assert [c.id for c in design.cells] == [c.id for c in whole.cells if c.id not in left_out]


def test_prompt_lengths_are_shuffled_by_the_seed_alone() -> None:
    lengths = [c.prompt_tokens for c in make_design(make_study(seed=1)).cells]
    assert lengths == [c.prompt_tokens for c in make_design(make_study(seed=1)).cells]
    assert lengths != [c.prompt_tokens for c in make_design(make_study(seed=2)).cells]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_arm_precedes_every_other_equally_often(n: int) -> None:
    transports = {f"t{i}": TRANSPORTS["tcp"] for i in range(n)}
    launches = 4 * n
    study = make_study(
        transports=transports, baseline="t0", prompt_tokens=[4096], launches=launches
    )
    arms = [c.arm for c in make_design(study).cells]
    follows: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(arms), n):
        row = arms[start : start + n]
        assert sorted(row) == sorted(transports)
        follows.update(itertools.pairwise(row))
    assert len(set(follows.values())) == 1
    assert len(follows) == n * (n - 1)


def test_all_cells_in_one_launch_share_an_engine_per_arm_and_block() -> None:
    design = make_design(make_study(engine=Engine(cells_per_launch="all")))
    assert len(design.launches) == 2 * 4
    assert all(len(launch.cells) == 3 for launch in design.launches)
    assert len(design.cells) == 24


def ids(**changes: object) -> set[str]:
    return {cell.id for cell in make_design(make_study(**changes)).cells}


def test_more_prompt_lengths_add_cells_and_keep_the_old() -> None:
    more = ids(prompt_tokens=[4096, 8192, 16384, 32768])
    assert ids() < more
    assert len(more) == 32


def test_fewer_or_more_transports_and_launches_keep_cells() -> None:
    assert ids(transports={"shm": TRANSPORTS["shm"]}) < ids()
    assert ids(launches=2) < ids()


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "again"},
        {"seed": 2},
        {"engine": Engine(num_threads=0)},
        {"workload": Workload(block_tokens=128)},
        {"host": Host("other", interfaces=["lo"], env={"UCX_NET_DEVICES": "lo"})},
    ],
)
def test_what_belongs_to_the_identity_makes_other_cells(changes: dict[str, object]) -> None:
    assert not ids() & ids(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": Engine(start_timeout_s=1.0)},
        {"baseline": "tcp"},
        {"retry": "none"},
        {"name": "other"},
        {
            "host": replace(
                make_study().host, address="h", port=1, work_dir="/x", price_per_hour=2.0
            )
        },
    ],
)
def test_what_does_not_belong_to_it_keeps_every_cell(changes: dict[str, object]) -> None:
    assert ids() == ids(**changes)


def test_one_transports_environment_changes_its_cells_only() -> None:
    tcp = replace(TRANSPORTS["tcp"], env={"UCX_TCP_CM_REUSEADDR": "y"})
    changed = ids(transports={"shm": TRANSPORTS["shm"], "tcp": tcp})
    assert {i for i in ids() if i.startswith("shm")} <= changed
    assert not {i for i in ids() if i.startswith("tcp")} & changed


def test_the_host_may_override_a_transport() -> None:
    host = replace(
        make_study().host, transports={"tcp": TransportOverride(["tcp", "self"], {"A": "1"})}
    )
    arms = make_design(make_study(host=host)).arms
    assert arms["tcp"].environment["UCX_TLS"] == "tcp,self"
    assert arms["tcp"].environment["A"] == "1"
    assert arms["shm"].environment["UCX_TLS"] == "cma,tcp"


def test_a_variant_overrides_engine_workload_and_environment() -> None:
    variants = {
        "blocks": Variant(),
        "push": Variant(engine={"operation": "write"}, workload={"pulls": 3}, env={"B": "2"}),
    }
    arms = make_design(make_study(variants=variants)).arms
    assert list(arms) == ["shm", "tcp", "shm+push", "tcp+push"]
    push = arms["tcp+push"]
    assert (push.engine.operation, push.workload.pulls, push.environment["B"]) == ("write", 3, "2")
    assert arms["tcp"].engine.operation == "read"


def test_contrasts_are_every_arm_against_the_baseline_unless_named() -> None:
    assert contrast_pairs(make_study()) == [["tcp", "shm"]]
    assert contrast_pairs(make_study(contrasts=[["shm", "tcp"]])) == [["shm", "tcp"]]


def test_design_facts_name_every_cell_once() -> None:
    study = make_study()
    facts = design_facts(study, make_design(study), "test")
    assert len({c["cell"] for c in facts["cells"]}) == 24
    assert {c["launch"] for c in facts["cells"]} == {c["cell"] for c in facts["cells"]}


def test_arms_may_be_chosen_from_the_matrix() -> None:
    variants = {"blocks": Variant(), "push": Variant(engine={"operation": "write"})}
    study = make_study(variants=variants, arms=["shm", "tcp+push"])
    assert list(make_design(study).arms) == ["shm", "tcp+push"]
    assert contrast_pairs(study) == [["tcp+push", "shm"]]


def on_two_hosts(**changes):
    hosts = [Host("a", interfaces=["lo"]), Host("b", interfaces=["lo"], env={"X": "1"})]
    return make_study(host=hosts[0], hosts=hosts, **changes)


class TestSeveralHosts:
    def test_a_block_stays_on_one_host_and_hosts_take_turns(self) -> None:
        design = make_design(on_two_hosts(launches=8))
        host_of = {(cell.block, cell.host) for cell in design.cells}
        assert sorted(host_of) == [(b, "ab"[b % 2]) for b in range(8)]

    @pytest.mark.parametrize("per_launch", ["one", "all"])
    def test_every_arm_goes_first_equally_often_on_each_host(self, per_launch: str) -> None:
        study = on_two_hosts(launches=8, engine=Engine(cells_per_launch=per_launch))
        first: Counter[tuple[str, str]] = Counter()
        by_round: dict[tuple[int, int], str] = {}
        for launch in make_design(study).launches:
            for cell in launch.cells:
                by_round.setdefault((cell.block, cell.prompt_tokens), launch.arm.label)
        for (block, _), arm in by_round.items():
            first["ab"[block % 2], arm] += 1
        assert len(set(first.values())) == 1
        assert len(first) == 4

    def test_blocks_of_a_host_are_those_that_it_has_in_a_study_of_its_own(self) -> None:
        both = on_two_hosts()
        alone = make_study(host=both.hosts[0])
        ids = {cell.id for cell in make_design(alone).cells if cell.block % 2 == 0}
        assert ids == {cell.id for cell in make_design(both).cells if cell.host == "a"}

    def test_each_host_has_its_own_environment(self) -> None:
        design = make_design(on_two_hosts())
        told = {launch.host: launch.arm.environment.get("X") for launch in design.launches}
        assert told == {"a": None, "b": "1"}

    def test_the_analysis_is_told_the_host_of_each_cell(self) -> None:
        study = on_two_hosts()
        facts = design_facts(study, make_design(study), "s")
        assert {(c["block"], c["host"]) for c in facts["cells"]} == {
            (0, "a"),
            (1, "b"),
            (2, "a"),
            (3, "b"),
        }
