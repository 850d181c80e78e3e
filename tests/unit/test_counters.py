from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvroad.evidence.counter import Edge, add_flows, flow_between, phase_edges
from kvroad.evidence.counters.interface import INTERFACE, parse_net_dev
from kvroad.evidence.counters.nic import NIC, parse_counter
from kvroad.evidence.counters.nvlink import NVLINK, parse_nvlink
from kvroad.evidence.weigh import early_check, weigh, weigh_packets, word_byte_hint
from kvroad.plan import Claim

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
GB = 1_000_000_000
ROCE = Claim(
    transport="roce",
    roads=["rc_mlx5", "rc_verbs"],
    operation="read",
    memory="DRAM",
    descriptor_bytes=131072,
    environment={},
    counters=["nic"],
    interfaces=["lo"],
)


def edge(name, second, *, lo=0, words=None, packets=None, kib=None, layer="Ethernet", **rest):
    row = {
        "edge": name,
        "cell": "c",
        "mono_ns": second * GB,
        "net": {"lo": {"rx_bytes": lo, "tx_bytes": lo}, "eth0": {"rx_bytes": 0, "tx_bytes": 0}},
        "rdma": {
            "mlx5_0/1": {
                "link_layer": layer,
                "port_rcv_data": words,
                "port_xmit_data": words,
                "rcvd_pkts": packets,
            }
        },
        "nvlink": {} if kib is None else {"0": {"rx_kib": kib, "tx_kib": 0}},
        "unavailable": {} if kib is not None else {"nvlink": "no nvidia-smi"},
    }
    return Edge.from_row({**row, **rest})


def test_port_counters_are_words_of_four_bytes():
    flow = flow_between(NIC, edge("a:start", 0, words=0), edge("a:end", 1, words=280_250_000_000))
    assert flow.received_bytes == 1_121_000_000_000
    assert flow.link_layers == {"mlx5_0/1": "Ethernet"}


def test_nvlink_counts_kib():
    flow = flow_between(NVLINK, edge("a:start", 0, kib=10), edge("a:end", 1, kib=8_553_454))
    assert (flow.received_bytes, flow.sent_bytes) == (8_553_444 * 1024, 0)


def test_interfaces_count_bytes_and_only_those_named():
    start, end = edge("a:start", 0, lo=5), edge("a:end", 2, lo=105)
    end.counts["net"]["eth0"]["rx_bytes"] = 7
    assert flow_between(INTERFACE, start, end, ["lo"]).received_bytes == 100
    assert flow_between(INTERFACE, start, end).received_bytes == 107
    assert flow_between(INTERFACE, start, end).seconds == 2


@pytest.mark.parametrize("name", ["mlx5_0", "mlx5_0/1", "mlx5_0:1"])
def test_ports_are_named_with_or_without_their_number(name):
    start, end = edge("a:start", 0, words=0), edge("a:end", 1, words=25)
    start.counts["rdma"]["mlx5_1/1"] = dict(start.counts["rdma"]["mlx5_0/1"])
    end.counts["rdma"]["mlx5_1/1"] = dict(end.counts["rdma"]["mlx5_0/1"])
    flow = flow_between(NIC, start, end, [name])
    assert flow.devices == {"mlx5_0/1": 100}


@pytest.mark.parametrize(
    ("kind", "start", "end", "names", "reason"),
    [
        (NVLINK, edge("a:start", 0), edge("a:end", 1), [], "no nvidia-smi"),
        (NIC, edge("a:start", 0), edge("a:end", 1), [], "mlx5_0/1 has no port_rcv_data"),
        (NIC, edge("a:start", 0, words=1), edge("a:end", 1, words=2), ["mlx5_7"], "of mlx5_7"),
        (NIC, edge("a:start", 0, rdma={}), edge("a:end", 1), [], "no counter of rdma"),
        (INTERFACE, edge("a:start", 0, lo=9), edge("a:end", 1, lo=4), ["lo"], "fell from 9 to 4"),
        (INTERFACE, edge("a:start", 0), edge("a:end", 1, net={}), ["lo"], "lo has no rx_bytes"),
    ],
)
def test_what_cannot_be_counted_is_unavailable_and_not_zero(kind, start, end, names, reason):
    flow = flow_between(kind, start, end, names)
    assert flow.received_bytes is None
    assert reason in flow.reason
    check = weigh(flow, GB, must_carry=True, tolerances=ROCE)
    assert check.ok is None
    assert reason in check.seen
    assert weigh(flow, GB, must_carry=False, tolerances=ROCE).ok is None


def test_a_counter_that_is_lost_in_one_phase_is_lost_in_the_sum():
    good = flow_between(NIC, edge("a:start", 0, words=0), edge("a:end", 1, words=10))
    lost = flow_between(NIC, edge("b:start", 1, words=10), edge("b:end", 2, words=3))
    assert add_flows([good, good]).received_bytes == 80
    assert add_flows([good, good]).seconds == 2
    assert add_flows([good, lost]).received_bytes is None
    assert "reset or wrapped" in add_flows([good, lost]).reason


@pytest.mark.parametrize(
    ("moved", "must_carry", "ok"),
    [
        (GB, True, True),
        (950_000_000, True, True),
        (949_999_999, True, False),
        (0, True, False),
        (0, False, True),
        (52_000_000, False, True),
        (52_000_001, False, False),
        (GB, False, False),
    ],
)
def test_bounds_of_the_payload(moved, must_carry, ok):
    flow = flow_between(INTERFACE, edge("a:start", 0), edge("a:end", 1, lo=moved), ["lo"])
    check = weigh(flow, GB, must_carry, ROCE)
    assert check.ok is ok
    assert check.kind == "interface_bytes"
    assert check.where == "net/lo rx_bytes"


def test_what_was_only_sent_went_that_way_too():
    start, end = edge("a:start", 0), edge("a:end", 1)
    end.counts["net"]["eth0"]["tx_bytes"] = GB
    flow = flow_between(INTERFACE, start, end, ["eth0"])
    assert weigh(flow, GB, must_carry=False, tolerances=ROCE).ok is False


def test_idle_traffic_is_allowed_for_by_the_second():
    flow = flow_between(INTERFACE, edge("a:start", 0), edge("a:end", 30, lo=60_000_000), ["lo"])
    assert weigh(flow, 1000, must_carry=False, tolerances=ROCE).ok is True
    strict = replace(ROCE, idle_bytes_per_s=1_000.0)
    assert weigh(flow, 1000, must_carry=False, tolerances=strict).ok is False


@pytest.mark.parametrize(
    ("ratio", "hint"),
    [(0.25, True), (0.26, True), (4.0, True), (4.1, True), (1.0, False), (0.5, False), (2, False)],
)
def test_the_word_byte_mistake_is_named(ratio, hint):
    assert bool(word_byte_hint(ratio)) is hint


def test_a_port_at_a_quarter_of_the_payload_contradicts_and_says_why():
    flow = flow_between(NIC, edge("a:start", 0, words=0), edge("a:end", 1, words=GB // 16))
    check = weigh(flow, GB, must_carry=True, tolerances=ROCE)
    assert check.ok is False
    assert "word/byte mistake" in check.seen


def test_a_port_at_four_times_the_payload_proves_nothing():
    flow = flow_between(NIC, edge("a:start", 0, words=0), edge("a:end", 1, words=GB))
    check = weigh(flow, GB, must_carry=True, tolerances=ROCE)
    assert check.ok is None
    assert "word/byte mistake" in check.seen


@pytest.mark.parametrize(
    ("packets", "must_carry", "ok", "expected"),
    [
        (GB // 1024, True, True, "at least 231934 packets"),
        (231_934, True, True, "at least 231934 packets"),
        (231_933, True, False, "at least 231934 packets"),
        (0, True, False, "at least 231934 packets"),
        (0, False, True, "at most 12695 packets"),
        (GB // 1024, False, None, "at most 12695 packets"),
    ],
)
def test_a_port_that_counts_packets_only_is_a_weaker_witness(packets, must_carry, ok, expected):
    flow = flow_between(NIC, edge("a:start", 0, packets=5), edge("a:end", 1, packets=5 + packets))
    assert flow.received_bytes is None
    assert weigh(flow, GB, must_carry, ROCE).ok is None
    check = weigh_packets(flow, GB, must_carry, ROCE)
    assert check is not None
    assert (check.kind, check.ok, check.expected) == ("nic_packets", ok, expected)
    assert (check.seen, check.where) == (f"{packets} packets", "rdma/mlx5_0/1 rcvd_pkts")


def test_packets_are_no_witness_beside_bytes_and_none_where_they_are_not_counted():
    both = [edge(name, 0, words=9, packets=9) for name in ("a:start", "a:end")]
    neither = [edge(name, 0) for name in ("a:start", "a:end")]
    assert weigh_packets(flow_between(NIC, *both), GB, True, ROCE) is None
    assert weigh_packets(flow_between(NIC, *neither), GB, True, ROCE) is None


def test_packets_tell_nothing_without_a_payload():
    flow = flow_between(NIC, edge("a:start", 0, packets=5), edge("a:end", 1, packets=6))
    check = weigh_packets(flow, 0, must_carry=True, tolerances=ROCE)
    assert check is not None
    assert check.ok is None


def test_early_check_goes_by_packets_where_there_are_no_bytes():
    start, end = edge("w:start", 0, packets=0), edge("w:end", 1, packets=0)
    checks = early_check(ROCE, start, end, GB)
    assert [(c.kind, c.ok) for c in checks] == [("interface_bytes", True), ("nic_packets", False)]


def test_no_payload_tells_nothing():
    flow = flow_between(INTERFACE, edge("a:start", 0), edge("a:end", 1), ["lo"])
    assert weigh(flow, 0, must_carry=True, tolerances=ROCE).ok is None


def test_early_check_sees_a_road_that_fell_back_to_tcp():
    checks = early_check(ROCE, edge("w:start", 0), edge("w:end", 1, lo=GB), GB)
    assert [(c.kind, c.ok) for c in checks] == [("interface_bytes", False)]
    assert asdict(checks[0]) == {
        "kind": "interface_bytes",
        "ok": False,
        "expected": "at most 52000000 bytes",
        "seen": "1000000000 bytes, 1.000 x the payload",
        "where": "net/lo rx_bytes",
    }


def test_early_check_of_a_road_that_carried():
    start, end = edge("w:start", 0, words=0), edge("w:end", 1, words=GB // 4)
    assert [(c.kind, c.ok) for c in early_check(ROCE, start, end, GB)] == [
        ("interface_bytes", True),
        ("nic_bytes", True),
    ]


def test_early_check_takes_other_tolerances():
    start, end = edge("w:start", 0), edge("w:end", 1, lo=GB)
    loose = replace(ROCE, not_carried_at_most=1.5)
    assert early_check(ROCE, start, end, GB, loose)[0].ok is True


def test_edges_are_paired_by_cell_and_phase():
    rows = [
        edge("warmup:start", 0),
        edge("warmup:end", 1),
        edge("warmup:start", 2, cell="d"),
        edge("warmup:end", 3, cell="d"),
        edge("in_flight:start", 4),
    ]
    assert set(phase_edges(rows)) == {("c", "warmup"), ("d", "warmup")}
    start, end = phase_edges(rows, "d")["d", "warmup"]
    assert (start.mono_ns, end.mono_ns) == (2 * GB, 3 * GB)


def test_net_dev_of_a_real_kernel():
    text = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs "
        "drop fifo colls carrier compressed\n"
        "    lo: 5205735917  580558    0    0    0     0          0         0 5205735918  580558"
        "    0    0    0     0       0          0\n"
        "  eth0:423945165 1 0 0 0 0 0 0 826008 2 0 0 0 0 0 0\n"
    )
    assert parse_net_dev(text) == {
        "lo": {"rx_bytes": 5205735917, "tx_bytes": 5205735918},
        "eth0": {"rx_bytes": 423945165, "tx_bytes": 826008},
    }


def test_net_dev_of_this_machine():
    assert "lo" in parse_net_dev(Path("/proc/net/dev").read_text())


@pytest.mark.parametrize(
    ("text", "value"), [("123\n", 123), ("N/A (no PMA)\n", None), ("", None), ("-1", None)]
)
def test_counter_files(text, value):
    assert parse_counter(text) == value


@pytest.mark.parametrize(
    ("name", "received"), [("nvlink_gt_d_two_h200.txt", True), ("nvlink_gt_r_two_h200.txt", False)]
)
def test_nvlink_text_of_two_h200(name, received):
    text = (SAMPLES / "counters" / name).read_text()
    counters = parse_nvlink(text)
    assert set(counters) == {"0", "1"}
    for gpu, part in zip("01", text.split("GPU 1:"), strict=True):
        for side in ("Tx", "Rx"):
            numbers = [int(rest.split()[0]) for rest in part.split(f"{side}: ")[1:]]
            assert len(numbers) == 18
            assert counters[gpu][f"{side.lower()}_kib"] == sum(numbers)
    assert (counters["1"]["rx_kib"] > 8_000_000) is received


def test_handmade_nvlink_text_without_numbers():
    # Handmade from the documented form of `nvidia-smi nvlink -gt d`.
    text = (
        "GPU 1: NVIDIA H200 (UUID: GPU-2)\n"
        "\t Link 0: Data Tx: N/A\n\t Link 0: Data Rx: 0 KiB\n"
        "\t Link 1: Data Tx: 5 KiB\n\t Link 1: Data Rx: 0 KiB\n"
        "GPU 2: NVIDIA L4 (UUID: GPU-3)\n"
    )
    assert parse_nvlink(text) == {
        "1": {"rx_kib": 0, "tx_kib": None},
        "2": {"rx_kib": None, "tx_kib": None},
    }


def test_handmade_nvlink_text_of_older_drivers():
    text = (
        "GPU 0: Tesla V100 (UUID: GPU-1)\n\t Link 0: Rx0: 12 KBytes, Tx0: 34 KBytes\n"
        "\t Link 1: Rx0: 1 KBytes, Tx0: 2 KBytes\n"
    )
    assert parse_nvlink(text) == {"0": {"rx_kib": 13, "tx_kib": 36}}
