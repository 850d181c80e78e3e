"""Raw folders from a RoCE NIC in software: what they prove, and what one change makes of them."""

import json
import shutil
from pathlib import Path

import pytest

from kvroad.proof.judge import judge_raw
from kvroad.study.arms import ucx_tls_of
from kvroad.study.compose import compose

REPOSITORY = Path(__file__).parents[2]
SAMPLES = REPOSITORY / "tests" / "data" / "soft_roce"
MISSING = "rxe0/1 has no port_rcv_data; rxe0/1 has no port_xmit_data"


@pytest.fixture
def roce(tmp_path):
    return shutil.copytree(SAMPLES / "roce", tmp_path / "roce")


def witness(outcome, name):
    return next(w for w in outcome.witnesses if w.name == name)


def statuses(outcome):
    return {w.name: w.status for w in outcome.witnesses}


def edit_claim(folder, **fields):
    plan = json.loads((folder / "plan.json").read_text())
    plan["claim"].update(fields)
    (folder / "plan.json").write_text(json.dumps(plan))


def edit_ports(folder, change):
    path = folder / "counters.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["rdma"] = change(row["rdma"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("name", "road"),
    [
        ("shm", "cma"),
        ("roce", "rc_verbs"),
        ("tcp", "tcp"),
        ("wheel_shm", "cma"),
        ("wheel_tcp", "tcp"),
    ],
)
def test_real_launches_are_proven(name, road):
    outcome = judge_raw(SAMPLES / name)
    assert (outcome.outcome, outcome.seen) == ("proven", road)
    assert statuses(outcome) == {
        "environment": "agrees",
        "protocol_table": "agrees",
        "use_counts": "agrees",
        "interface_bytes": "agrees",
        "nic_bytes": "unavailable",
        "nic_packets": "agrees",
        "nvlink_bytes": "unavailable",
        "telemetry": "agrees",
    }
    assert witness(outcome, "nic_bytes").seen == MISSING


def test_copy_out_rows_count_pieces_and_packets_carry_the_payload():
    outcome = judge_raw(SAMPLES / "roce")
    assert "| copy-out    | rc_verbs/rxe0:1" in outcome.quote
    counted, _, moved = witness(outcome, "use_counts").seen.partition(" counted for ")
    assert moved == "600 descriptors moved"
    assert int(counted) > 600
    packets = witness(outcome, "nic_packets")
    assert packets.where == "counters.jsonl rdma/rxe0/1 rcvd_pkts"
    # The port's MTU is 1024.
    assert int(packets.seen.removesuffix(" packets")) * 1024 > 5 * 15_728_640


def test_packets_alone_confirm_where_nothing_is_counted_by_ucx(roce):
    edit_claim(roce, use_counts=False)
    outcome = judge_raw(roce)
    assert (outcome.outcome, statuses(outcome)["use_counts"]) == ("proven", "unavailable")
    edit_ports(roce, lambda ports: {k: {**v, "rcvd_pkts": None} for k, v in ports.items()})
    outcome = judge_raw(roce)
    # The quiet interfaces still say that nothing went by TCP.
    assert "nic_packets" not in statuses(outcome)
    assert statuses(outcome)["interface_bytes"] == "agrees"


def test_packets_that_stand_still_contradict(roce):
    edit_ports(roce, lambda ports: {k: {**v, "rcvd_pkts": 81} for k, v in ports.items()})
    outcome = judge_raw(roce)
    assert outcome.outcome == "refused"
    assert "nic counters saw 0 packets, expected at least 18240 packets" in outcome.reason


@pytest.mark.parametrize("has_packets", [True, False])
def test_the_same_road_is_not_infiniband(roce, has_packets):
    edit_claim(roce, transport="infiniband", link_layer="InfiniBand")
    if not has_packets:
        edit_ports(roce, lambda ports: {k: {**v, "rcvd_pkts": None} for k, v in ports.items()})
    outcome = judge_raw(roce)
    assert outcome.outcome == "refused"
    assert outcome.reason.startswith(
        "claimed infiniband (rc_mlx5 or rc_verbs) but nic counters saw"
    )
    assert (
        "nic counters saw the payload on port rxe0/1, whose link layer is Ethernet, "
        "expected link layer InfiniBand"
    ) in outcome.reason


def test_a_port_of_another_link_layer_that_is_not_used_is_no_matter(roce):
    def add(ports):
        return {**ports, "mlx5_0/1": {"link_layer": "InfiniBand", "rcvd_pkts": 7}}

    edit_claim(roce, rdma_devices=[])
    edit_ports(roce, add)
    assert judge_raw(roce).outcome == "proven"


def test_the_wheel_s_own_libibverbs_is_refused_with_the_cause():
    outcome = judge_raw(SAMPLES / "wheel_roce")
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "tcp", True)
    assert outcome.reason.startswith(
        "claimed roce (rc_mlx5 or rc_verbs) but the reads went by software emulation over tcp/lo"
    )
    assert (
        "libibverbs has no driver librxe-rdmav34.so, so that rxe0:1 stays unseen" in outcome.reason
    )
    assert statuses(outcome) == {
        "environment": "agrees",
        "protocol_table": "contradicts",
        "use_counts": "contradicts",
        "interface_bytes": "contradicts",
        "nic_bytes": "unavailable",
        "nic_packets": "contradicts",
        "nvlink_bytes": "unavailable",
        "telemetry": "contradicts",
    }
    assert witness(outcome, "nic_packets").seen == "0 packets"


def test_that_launch_was_stopped_after_warm_up_by_two_counters():
    lines = (SAMPLES / "wheel_roce" / "events.jsonl").read_text().splitlines()
    checks = [row for row in map(json.loads, lines) if row["event"] == "check"]
    assert [(c["kind"], c["phase"], c["ok"]) for c in checks] == [
        ("interface_bytes", "warmup", False),
        ("nic_packets", "warmup", False),
    ]


def test_both_hosts_ask_for_the_same_and_differ_in_python_only():
    conf = REPOSITORY / "conf"
    system = compose(["study=soft_roce"], conf)
    wheel = compose(["study=soft_roce", "host=soft_roce_wheel"], conf)
    assert ucx_tls_of(system, "roce") == ucx_tls_of(wheel, "roce") == ["rc_v", "tcp"]
    # Cells are told apart by the host's name, so that neither takes the other's.
    different = {k for k, v in vars(system.host).items() if v != vars(wheel.host)[k]}
    assert different == {"name", "python"}
