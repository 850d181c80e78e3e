"""Telemetry, counters, launches that end badly, and logs of serving engines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from raw_folders import SAMPLES, copy_raw, edit, edit_claim, edit_rows, statuses

from kvroad.errors import UserError
from kvroad.evidence.nixl import parse_pulls
from kvroad.evidence.ucx import parse_lines
from kvroad.plan import Claim
from kvroad.proof.judge import judge, judge_raw, witnesses_of
from kvroad.proof.raw import Evidence, read_raw
from kvroad.proof.witnesses.ucx import protocol_table, use_counts
from kvroad.study.fields import RoadTolerances


@pytest.fixture
def raw(tmp_path):
    return lambda name: copy_raw(name, tmp_path)


# -- telemetry


def change_pull(folder: Path, number: int, **fields) -> None:
    rows = [json.loads(line) for line in (folder / "pulls-0.jsonl").read_text().splitlines()]
    rows[number].update(fields)
    (folder / "pulls-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_failed_transfer_is_refused(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 2, state="ERR", error="NIXL_ERR_REMOTE_DISCONNECT", verified=False)
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("refused", False)
    assert "1 of 5 transfers failed: NIXL_ERR_REMOTE_DISCONNECT (pulls-0.jsonl:3)" in outcome.reason


def test_bytes_that_arrived_wrong_fail_the_cell(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 2, verified=False)
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("failed", False)
    assert outcome.reason.startswith("data error: 1 of 5 pulls brought other bytes")
    assert outcome.where == "pulls-0.jsonl:3"


def test_descriptors_that_nixl_merged(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 1, descriptors_moved=1)
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "NIXL moved 1 of 1760 descriptors" in outcome.reason
    assert "NIXL merged 1760 descriptors into 1" in outcome.reason


def test_fewer_bytes_than_planned(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 1, bytes_moved=57671679)
    assert "NIXL moved 57671679 of 57671680 bytes" in judge_raw(folder).reason


def test_a_pull_that_was_never_made(raw):
    folder = raw("shm_four_threads")
    edit_rows(folder / "pulls-0.jsonl", lambda r: None if r["pull"] == 1 else r)
    assert "pulls planned for phase" in judge_raw(folder).reason


def test_a_row_without_telemetry(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 1, descriptors_moved=None, bytes_moved=None, post_us=None, xfer_us=None)
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert statuses(outcome)["telemetry"] == "unavailable"


def test_a_row_that_a_crash_cut(raw):
    folder = raw("shm_four_threads")
    path = folder / "pulls-0.jsonl"
    path.write_text(path.read_text()[:-40])
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "not a pull" in next(w.seen for w in outcome.witnesses if w.name == "telemetry")


def test_a_post_longer_than_its_transfer_is_dropped_and_refuses_nothing(raw):
    folder = raw("shm_four_threads")
    change_pull(folder, 1, post_us=200_000, xfer_us=100_000)
    assert judge_raw(folder).outcome == "proven"
    with (folder / "pulls-0.jsonl").open() as lines:
        pulls = parse_pulls(lines, "pulls-0.jsonl").pulls
    assert pulls[1].drop_reason == "data error: post 200000 us > transfer 100000 us"
    assert pulls[2].drop_reason is None


# -- byte counters


def add_lo(folder: Path, n_bytes: int) -> None:
    def change(row):
        if row["edge"].endswith(":end"):
            row["net"]["lo"]["rx_bytes"] += n_bytes
        return row

    edit_rows(folder / "counters.jsonl", change)


def test_payload_on_the_interface_contradicts_shared_memory(raw):
    folder = raw("shm_four_threads")
    add_lo(folder, 100_000_000)
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("refused", False)
    assert "interface counters saw" in outcome.reason
    assert "another program may have used it" in outcome.reason
    assert judge_raw(folder, RoadTolerances(not_carried_at_most=2.0)).outcome == "proven"


def test_an_idle_interface_contradicts_tcp(raw):
    folder = raw("tcp_four_threads")
    add_lo(folder, -50_000_000)
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["interface_bytes"]) == ("refused", "contradicts")


def test_a_counter_that_fell_is_unavailable(raw):
    folder = raw("tcp_four_threads")
    add_lo(folder, -100_000_000_000)
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["interface_bytes"]) == ("proven", "unavailable")
    edit_claim(folder, use_counts=False)
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "no use count and no byte counter" in outcome.reason


def with_port(folder: Path, layer: str, factor: float) -> None:
    """Add a port that carried ``factor`` x the payload, as the handmade part of the folder."""
    words = [0]
    payload = {"warmup": 57671680, "one_at_a_time": 2 * 57671680, "in_flight": 2 * 57671680}

    def change(row):
        phase, side = row["edge"].split(":")
        words[0] += int(factor * payload[phase] / 4) if side == "end" else 0
        row["rdma"] = {
            "mlx5_0/1": {
                "link_layer": layer,
                "port_rcv_data": words[0],
                "port_xmit_data": words[0],
            }
        }
        return row

    edit_rows(folder / "counters.jsonl", change)


@pytest.mark.parametrize(
    ("layer", "factor", "expected", "said"),
    [
        ("Ethernet", 1.02, "proven", "went by zero-copy over rc_mlx5/mlx5_0:1"),
        ("InfiniBand", 1.02, "refused", "port mlx5_0/1, whose link layer is InfiniBand, expected"),
        ("Ethernet", 0.5, "refused", "nic counters saw"),
        ("Ethernet", 0.25, "refused", "word/byte mistake"),
        ("Ethernet", 4.0, "proven", "use_counts"),
    ],
)
def test_ports_tell_roce_from_infiniband_and_from_nothing(raw, layer, factor, expected, said):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "cma/memory", "rc_mlx5/mlx5_0:1")
    edit_claim(folder, transport="roce", roads=["rc_mlx5"], counters=["nic"], link_layer="Ethernet")
    with_port(folder, layer, factor)
    outcome = judge_raw(folder)
    assert outcome.outcome == expected
    assert said in outcome.reason


# -- nothing started, broken off, stopped


def test_a_road_that_cannot_start_is_refused_with_ucx_s_line():
    outcome = judge_raw(SAMPLES / "raw" / "rc_x_cannot_start")
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "none", True)
    assert "claimed roce (rc_mlx5 or rc_verbs) but nothing started" in outcome.reason
    assert "UCX  WARN  transports 'rc_x','cuda_copy' are not available" in outcome.quote
    assert outcome.where == "prefill-0.log:2"


def test_an_unknown_complaint_is_quoted_as_it_is(raw):
    folder = raw("rc_x_cannot_start")
    log = folder / "prefill-0.log"
    edit(log, "transports 'rc_x','cuda_copy' are not available", "something new")
    edit(log, "no usable transports/devices (asked rc_x,cuda_copy", "no way (asked")
    # The order in a log is that of two buffers: UCX's word counts wherever it stands.
    first, warning, error, *rest = log.read_text().splitlines(True)
    log.write_text("".join([first, warning, *rest, error]))
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen) == ("refused", "none")
    assert outcome.where == f"prefill-0.log:{3 + len(rest)}"
    assert "UCX  ERROR no way" in outcome.quote


def end(folder: Path, **fields) -> None:
    edit_rows(
        folder / "events.jsonl", lambda row: {**row, **fields} if row["event"] == "end" else row
    )


def test_a_launch_that_broke_off_failed_with_step_and_last_lines(raw):
    folder = raw("shm_four_threads")
    end(folder, status="failed", step="in_flight", reason="no answer from decode-0 within 600 s")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("failed", False)
    assert outcome.reason == "in_flight failed: no answer from decode-0 within 600 s"
    last = (folder / "decode-0.log").read_text().rstrip("\n").split("\n")
    assert outcome.where == f"decode-0.log:{len(last)}"
    assert outcome.quote.endswith(last[-1].strip())


def test_the_lines_are_those_of_the_process_that_died(raw):
    folder = raw("shm_four_threads")
    end(folder, status="failed", step="warmup", reason="prefill-0 ended with status 1")
    edit_rows(
        folder / "events.jsonl",
        lambda r: {**r, "returncode": 1} if r.get("process") == "prefill-0" else r,
    )
    assert judge_raw(folder).where.startswith("prefill-0.log:")


def test_a_host_that_left_no_end_failed(raw):
    folder = raw("shm_four_threads")
    edit_rows(folder / "events.jsonl", lambda row: None if row["event"] == "end" else row)
    outcome = judge_raw(folder)
    assert outcome.outcome == "failed"
    assert "no end event" in outcome.reason


def test_a_timeout_on_a_wrong_road_is_the_wrong_road(raw):
    folder = raw("roce_falls_to_tcp")
    end(folder, status="failed", step="warmup", reason="no answer from decode-0 within 600 s")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "tcp", True)


def test_a_cell_stopped_by_a_check_alone_is_refused_by_it(raw):
    folder = raw("shm_four_threads")
    end(folder, status="stopped", step="road")
    check = {"event": "check", "ok": False, "kind": "interface_bytes", "where": "net/lo rx_bytes"}
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({**check, "seen": "9 bytes", "expected": "at most 5 bytes"}) + "\n")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "cma", False)
    assert "after warm-up interface counters saw 9 bytes, expected at most 5" in outcome.reason


def test_missing_phases_of_a_stopped_cell_are_not_its_fault(raw):
    folder = raw("roce_falls_to_tcp")
    edit_claim(folder, roads=["tcp"], counters=["interface"])
    outcome = judge_raw(folder)
    assert "pulls planned" not in outcome.reason
    assert "after warm-up interface counters saw" in outcome.reason


def second_cell(folder: Path, status: str) -> None:
    """Let the launch have had a second cell that was never begun."""
    plan = json.loads((folder / "plan.json").read_text())
    plan["cells"].append({**plan["cells"][0], "cell": "second"})
    (folder / "plan.json").write_text(json.dumps(plan))
    end(folder, status=status, step="warmup", reason="the host is out of memory")


def test_a_cell_that_is_whole_does_not_fail_with_its_launch(raw):
    folder = raw("shm_four_threads")
    first = json.loads((folder / "plan.json").read_text())["cells"][0]["cell"]
    second_cell(folder, "failed")
    assert judge_raw(folder, cell=first).outcome == "proven"
    outcome = judge_raw(folder, cell="second")
    assert (outcome.outcome, "out of memory" in outcome.reason) == ("failed", True)


def test_what_is_no_raw_folder_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="not the plan of a raw folder"):
        judge_raw(tmp_path)
    (tmp_path / "plan.json").write_text('{"claim": {}, "cells": []}')
    with pytest.raises(UserError, match="not the plan of a raw folder"):
        judge_raw(tmp_path)


def test_secrets_stay_out_of_reason_and_quote(raw):
    folder = raw("shm_four_threads")
    end(folder, status="failed", step="start decode-0", reason="HF_TOKEN=hf_abcdefghijklmnopqrst")
    log = folder / "decode-0.log"
    log.write_text(log.read_text() + "password: hunter2\n")
    outcome = judge_raw(folder)
    assert "hf_abc" not in outcome.reason
    assert "hunter2" not in outcome.quote


# -- logs of serving engines


def serving(name: str, **fields) -> Evidence:
    claim = Claim(
        transport="nvlink",
        roads=["cuda_ipc"],
        operation="read",
        memory="VRAM",
        descriptor_bytes=131072,
        environment={"UCX_TLS": "cuda_copy,cuda_ipc,tcp"},
        counters=["nvlink"],
        use_counts=False,
    )
    with (SAMPLES / "serving" / name).open(errors="replace", newline="\n") as lines:
        log = replace(parse_lines(lines, name), file="decode-0.log")
    return Evidence(replace(claim, **fields), {"decode-0.log": log}, (), (), (), {})


def test_nvlink_under_vllm():
    evidence = serving("vllm023_nvlink_decode.log")
    witness = protocol_table(evidence)
    assert (witness.status, evidence.seen_road()) == ("agrees", "cuda_ipc")
    assert witness.seen == "zero-copy over cuda_ipc/cuda in 4 workers"
    assert witnesses_of(evidence)[0].status == "agrees"


def test_active_messages_and_lanes_are_not_taken_for_the_road():
    evidence = serving("vllm023_tcp_decode.log")
    witness = protocol_table(evidence)
    assert (witness.status, evidence.seen_road()) == ("contradicts", "tcp")
    assert witness.seen == "the reads went by software emulation over tcp/lo"
    assert witnesses_of(evidence)[0].status == "contradicts"


def test_handmade_cuda_ipc_in_lanes_only_is_refused_with_a_hint():
    # Handmade: the lane line of the NVLink launch beside the table of the TCP launch.
    evidence = serving("vllm023_tcp_decode.log", environment={})
    nvlink = serving("vllm023_nvlink_decode.log").logs["decode-0.log"]
    log = replace(evidence.logs["decode-0.log"], lanes=nvlink.lanes)
    outcome = judge(
        replace(
            evidence, logs={"decode-0.log": log}, events=({"event": "end", "status": "complete"},)
        )
    )
    assert (outcome.outcome, outcome.seen) == ("refused", "tcp")
    assert "cuda_ipc is connected but not used for remote reads" in outcome.reason
    assert "GPUs without NVLink" in outcome.reason
    assert "PID namespace" in outcome.reason


@pytest.mark.parametrize(("name", "road"), [("shm", "cma"), ("tcp", "tcp")])
def test_dynamo_on_cpus(name, road):
    fields = {"memory": "DRAM", "roads": [road], "descriptor_bytes": 65536}
    evidence = serving(f"dynamo161_{name}_decode.log", **fields)
    assert protocol_table(evidence).status == "agrees"
    assert evidence.seen_road() == road


def test_dynamo_without_ucx_s_information_lines_proves_no_environment():
    witness = witnesses_of(serving("dynamo161_shm_decode.log", memory="DRAM", roads=["cma"]))[0]
    assert witness.status == "unavailable"


@pytest.mark.parametrize(
    ("name", "count"), [("nixl_read_1desc.txt", 3), ("nixl_read_rc_x_cuda_copy_tcp.txt", 1500)]
)
def test_emulation_counts_descriptors(name, count):
    with (SAMPLES / "ucx" / name).open() as lines:
        log = parse_lines(lines, "decode-0.log")
    evidence = serving("vllm023_tcp_decode.log", memory="DRAM", roads=["rc_mlx5"], use_counts=True)
    witness = use_counts(replace(evidence, logs={"decode-0.log": log}))
    assert witness.status == "contradicts"
    assert (
        witness.seen == f"{count} of {count} reads counted went by software emulation over tcp/lo"
    )


def test_the_evidence_of_a_raw_folder():
    evidence = read_raw(SAMPLES / "raw" / "shm_four_threads")
    assert evidence.initiators == ["decode-0.log"]
    assert sum(evidence.planned.values()) == 5
    assert len(evidence.edges) == 6
    assert evidence.ended()["status"] == "complete"
