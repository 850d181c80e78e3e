"""Parsers of vLLM's transfers and of load generators, on outputs of real programs."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvroad.evidence.counter import Edge
from kvroad.evidence.counters.nvlink import NVLINK
from kvroad.evidence.kv_transfer import MIB
from kvroad.evidence.requests import parse_aiperf, parse_own, parse_vllm_bench
from kvroad.evidence.serving import served_phase
from kvroad.evidence.ucx import parse_lines
from kvroad.evidence.vllm import parse_kv_lines, parse_prometheus, totals_of, transfers_between
from kvroad.evidence.weigh import early_check
from kvroad.plan import Claim, Serving
from kvroad.proof.raw import Evidence
from kvroad.proof.witnesses.counters import byte_counter

SAMPLES = Path(__file__).parents[1] / "data/samples"
NONE = parse_prometheus("")
# Transfers, seconds of them, bytes, and descriptors that the samples' engines counted.
COUNTED = {
    "vllm023_nvlink": (69, 3.488454, 7.1068286976e10, 542208),
    "vllm023_tcp": (39, 496.227583, 3.9325794304e10, 300032),
    "dynamo161_tcp": (70, 0.870762, 5.8720256e8, 6952),
    "dynamo161_shm": (70, 5.25476, 5.8720256e8, 3960),
}


def text_of(name: str) -> str:
    return (SAMPLES / name).read_text(errors="replace")


def lines_of(name: str) -> list[str]:
    return text_of(name).split("\n")


@pytest.mark.parametrize("name", COUNTED)
def test_metrics_of_every_version_give_the_same_quantities(name: str) -> None:
    told = transfers_between(NONE, parse_prometheus(text_of(f"serving/{name}_decode.prom")))
    count, seconds, n_bytes, descriptors = COUNTED[name]
    assert (told.count, told.n_bytes, told.descriptors) == (count, n_bytes, descriptors)
    assert told.xfer_s == pytest.approx(seconds)
    assert 0 < told.post_s < told.xfer_s
    assert (told.failed, told.failed_notifications, told.expired) == (0, 0, 0)


@pytest.mark.parametrize("name", COUNTED)
def test_the_log_lines_tell_the_same_transfers_as_the_metrics(name: str) -> None:
    told = totals_of(parse_kv_lines(lines_of(f"serving/{name}_decode.log"), "decode.log"))
    count, seconds, n_bytes, descriptors = COUNTED[name]
    assert told.transfers == count
    assert abs(told.xfer_ms / 1e3 - seconds) <= told.xfer_slack_ms / 1e3
    assert abs(told.n_bytes - n_bytes) <= told.bytes_slack
    assert told.descriptors == pytest.approx(descriptors, rel=1e-3)


def test_a_line_is_converted_from_mebibytes_and_its_rate_is_that_of_one_transfer() -> None:
    told = parse_kv_lines(lines_of("serving/vllm023_tcp_decode.log"), "decode.log")[-1].transfers
    assert told.transfer_bytes == 2048 * MIB
    assert told.xfer_ms is not None
    rate = 1e3 * told.transfer_bytes / told.xfer_ms
    assert told.bytes_per_s == pytest.approx(rate, rel=1e-3)
    # vLLM 0.23 prints neither; 0.31 does.
    assert (told.failed, told.expired) == (None, None)
    newer = parse_kv_lines(lines_of("serving/dynamo161_shm_decode.log"), "decode.log")[0]
    assert (newer.transfers.failed, newer.transfers.expired) == (0, 0)
    assert lines_of("serving/dynamo161_shm_decode.log")[newer.line - 1] == newer.text


def test_colours_and_prefixes_do_not_hide_a_line() -> None:
    lines = lines_of("serving/dynamo161_shm_decode.log")
    line = next(line for line in lines if "KV Transfer metrics" in line)
    coloured = line.replace("KV Transfer", "\x1b[2mKV Transfer").replace(
        "=0, Num", "=0\x1b[0m, Num"
    )
    assert parse_kv_lines([coloured], "f") == parse_kv_lines([line], "f")
    assert parse_kv_lines([line[: line.index("Avg MB")]], "f") == ()


# All samples of engines and of UCX's protocol tables: what kind each is, and what it must give.
# A log: UCX's version where it says one, processes that print tables of reads or writes to
# another process, the road of 64 KiB. Metrics: transfers.
SOFTWARE = "software emulation over tcp/lo"
EXPECTED: dict[str, tuple[Any, ...]] = {
    "serving/dynamo161_shm_decode.log": ((), 0, 1, "zero-copy over cma/memory", (8, 70)),
    "serving/dynamo161_shm_decode.prom": (70, 587202560, 0),
    "serving/dynamo161_shm_prefill.log": ((), 0, 0, "", (0, 0)),
    "serving/dynamo161_tcp_decode.log": ((), 0, 1, SOFTWARE, (6, 70)),
    "serving/dynamo161_tcp_decode.prom": (70, 587202560, 0),
    "serving/dynamo161_tcp_prefill.log": ((), 0, 0, "", (0, 0)),
    "serving/vllm023_nvlink_decode.log": (
        *(("1.21.0",), 1, 4, "zero-copy over cuda_ipc/cuda", (3, 69)),
    ),
    "serving/vllm023_nvlink_decode.prom": (69, 71068286976, 0),
    "serving/vllm023_nvlink_prefill.log": (("1.21.0",), 1, 0, "", (0, 0)),
    "serving/vllm023_tcp_decode.log": (("1.21.0",), 1, 4, SOFTWARE, (11, 39)),
    "serving/vllm023_tcp_decode.prom": (39, 39325794304, 0),
    "ucx/ucx121_nixl131_cma_protoinfo_y.log": (
        *(("1.21.0",), 1, 1, "zero-copy over cma/memory", (0, 0)),
    ),
    "ucx/ucx121_nixl131_tcp_protoinfo_used.log": (("1.21.0",), 1, 1, SOFTWARE, (0, 0)),
    "ucx/ucx123_nixl151_cma_protoinfo_y.log": (
        *(("1.23.0",), 1, 1, "zero-copy over cma/memory", (0, 0)),
    ),
    "ucx/ucx123_nixl151_tcp_protoinfo_used.log": (("1.23.0",), 1, 1, SOFTWARE, (0, 0)),
}


def test_there_is_an_expectation_for_every_sample() -> None:
    found = [p for p in (SAMPLES / "serving").iterdir() if p.is_file()]
    found += [p for p in (SAMPLES / "ucx").iterdir() if "protoinfo" in p.name]
    assert {p.relative_to(SAMPLES).as_posix() for p in found} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_parsers_are_right_on_every_sample(name: str) -> None:
    if name.endswith(".prom"):
        told = transfers_between(NONE, parse_prometheus(text_of(name)))
        assert (told.count, told.n_bytes, told.failed) == EXPECTED[name]
        return
    versions, environments, tables, road, lines = EXPECTED[name]
    log = parse_lines(lines_of(name), name)
    moves = [t for t in log.tables if t.operation in ("read", "write") and t.scope != "self"]
    moves = [t for t in moves if "(multi)" in t.api]
    assert tuple(sorted({v.version for v in log.versions})) == versions
    assert len({line.pid for line in log.environments}) == environments
    assert len(moves) == tables
    assert {str(t.row_for(65536)) for t in moves} == ({road} if road else set())
    kv = parse_kv_lines(lines_of(name), name)
    assert (len(kv), totals_of(kv).transfers) == lines


@pytest.mark.parametrize(
    ("name", "road", "tables"),
    [
        ("vllm023_nvlink", "zero-copy over cuda_ipc/cuda", 4),
        ("vllm023_tcp", "software emulation over tcp/lo", 4),
        ("dynamo161_tcp", "software emulation over tcp/lo", 1),
        ("dynamo161_shm", "zero-copy over cma/memory", 1),
    ],
)
def test_the_read_tables_of_engines_are_found_one_per_worker(name, road, tables) -> None:
    log = parse_lines(lines_of(f"serving/{name}_decode.log"), f"{name}.log")
    reads = [t for t in log.tables if t.operation == "read" and t.scope != "self"]
    assert [str(t.row_for(131072)) for t in reads] == [road] * tables
    assert len({(t.pid, t.tid) for t in reads}) == tables


def test_options_are_read_from_labels() -> None:
    older = parse_prometheus(text_of("serving/vllm023_tcp_decode.prom"))
    newer = parse_prometheus(text_of("serving/dynamo161_tcp_decode.prom"))
    name = "vllm:cache_config_info"
    assert older.label(name, "block_size") == {"64"}
    assert newer.label(name, "block_size") == {"128"}
    assert newer.label(name, "enable_prefix_caching") == {"False"}
    assert older.label(name, "no_such_label") == set()


def test_labels_may_hold_brackets_commas_and_quotes() -> None:
    metrics = parse_prometheus('vllm:x{a="1,}b{\\"",c="2"} 3\nvllm:x{a="z",c="4"} 4 1700000000\n')
    assert metrics.total("vllm:x") == 7
    assert metrics.total("vllm:x", c="4") == 4


def test_a_counter_that_fell_is_a_restart() -> None:
    full = parse_prometheus(text_of("serving/dynamo161_tcp_decode.prom"))
    assert transfers_between(full, NONE).reset
    assert not transfers_between(full, full).reset
    assert transfers_between(full, full).count == 0


def test_failures_of_both_engines_count() -> None:
    decode = parse_prometheus('vllm:nixl_num_failed_transfers_total{engine="0"} 1.0')
    prefill = parse_prometheus('vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0')
    told = transfers_between(NONE, decode, (NONE, prefill))
    assert (told.failed, told.expired) == (1, 2)


def test_aiperf_records() -> None:
    requests = parse_aiperf(lines_of("load/aiperf013_good.jsonl"), "f")
    assert len(requests) == 12
    assert {r.error for r in requests} == {None}
    assert {(r.input_tokens, r.output_tokens) for r in requests} == {(256, 16)}
    assert requests[0].ttft_s == pytest.approx(0.08595765)
    assert requests[0].itl_s == pytest.approx(0.0034569458)


def test_requests_that_aiperf_let_fail_with_status_0_are_seen() -> None:
    requests = parse_aiperf(lines_of("load/aiperf013_failed.jsonl"), "f")
    assert len(requests) == 12
    failed = [r for r in requests if r.error is not None]
    assert len(failed) >= 2
    assert all("boom" in str(r.error) for r in failed)
    # Some answers are shorter than asked, and aiperf counts them as good.
    assert {r.output_tokens for r in requests if r.error is None} == {13, 16}


def test_a_cut_record_is_a_failed_request() -> None:
    whole = lines_of("load/aiperf013_good.jsonl")[0]
    (request,) = parse_aiperf([whole[:-5]], "f")
    assert str(request.error).startswith("not a request")


def test_the_benchmark_of_vllm() -> None:
    requests = parse_vllm_bench(text_of("load/vllm031_bench_failed.json"), "f")
    assert [r.error is None for r in requests].count(False) == 3
    assert requests[0].error == "Internal Server Error"
    assert requests[2].ttft_s == pytest.approx(0.051287, rel=1e-3)
    assert {r.output_tokens for r in requests if r.error is None} == {13, 16}
    with pytest.raises(ValueError, match="no JSON object"):
        parse_vllm_bench("[]", "f")


def test_own_requests() -> None:
    row = {"started": 1.0, "first_token": 1.2, "ended": 1.5, "output_tokens": 4, "error": None}
    good, cut = parse_own([json.dumps(row), '{"started": 1.0}'], "f")
    assert good.ttft_s == pytest.approx(0.2)
    assert good.itl_s == pytest.approx(0.1)
    assert cut.error is not None


def test_failed_requests_are_excluded_and_counted() -> None:
    records = text_of("load/aiperf013_failed.jsonl")
    phase = served_phase("c", "in_flight", {"requests": 12}, {"profile_export.jsonl": records})
    assert phase.n_failed == 12 - len(phase.good)
    assert phase.n_failed > 0
    assert phase.transfers is None
    assert phase.requests_per_s is not None
    starts = [r.started_s for r in phase.requests]
    ends = [r.ended_s for r in phase.requests]
    assert phase.requests_per_s == pytest.approx(len(phase.good) / (max(ends) - min(starts)))


def claim(ranks: int) -> Claim:
    return Claim(
        transport="roce",
        roads=["rc_mlx5"],
        operation="read",
        memory="VRAM",
        descriptor_bytes=131072,
        environment={},
        counters=["nic"],
        gpus=[0],
        serving=Serving(ranks, 131072, 16),
    )


def test_nvlink_tells_nothing_of_engines_whose_ranks_use_it_themselves() -> None:
    edges = [
        Edge(f"warmup:{edge}", "c", n, {"nvlink": {"0": {"rx_kib": kib, "tx_kib": kib}}})
        for n, (edge, kib) in enumerate([("start", 0), ("end", 10**6)])
    ]
    assert [c.kind for c in early_check(claim(1), *edges, 10**6)] == ["nvlink_bytes"]
    assert early_check(claim(4), *edges, 10**6) == []
    prom = {
        "decode.start.prom": "",
        "decode.end.prom": "vllm:nixl_bytes_transferred_sum 1000000\n",
    }
    phase = served_phase("c", "warmup", {}, prom)
    for ranks, status in ((1, "contradicts"), (4, "unavailable")):
        evidence = Evidence(claim(ranks), {}, (), tuple(edges), (), {}, cell="c", served=(phase,))
        witness = byte_counter(NVLINK, "bytes", evidence)
        assert witness is not None
        assert witness.status == status
