"""Which road a raw folder proves, and what one changed line in it does to the verdict."""

import json
import shutil
from dataclasses import asdict

import pytest
from raw_folders import SAMPLES, copy_raw, edit, edit_claim, edit_rows, statuses

from kvroad.proof.judge import judge_raw


@pytest.fixture
def raw(tmp_path):
    return lambda name: copy_raw(name, tmp_path)


# -- proven


@pytest.mark.parametrize(
    ("name", "road", "where"),
    [
        ("shm_four_threads", "cma", "decode-0.log"),
        ("tcp_four_threads", "tcp", "decode-0.log"),
        ("shm_push", "cma", "prefill-0.log"),
        ("nvlink_read", "cuda_ipc", "decode-0.log"),
        ("nvlink_push_sgl", "cuda_ipc", "prefill-0.log"),
    ],
)
def test_real_launches_are_proven(name, road, where):
    outcome = judge_raw(SAMPLES / "raw" / name)
    assert (outcome.outcome, outcome.seen, outcome.expected) == ("proven", road, [road])
    assert outcome.where.startswith(f"{where}:")
    line = int(outcome.where.split(":")[1])
    text = (SAMPLES / "raw" / name / where).read_text().split("\n")[line - 1]
    assert outcome.quote == text.strip()
    assert statuses(outcome) == {
        "environment": "agrees",
        "protocol_table": "agrees",
        "use_counts": "agrees",
        "interface_bytes": "agrees",
        "nic_bytes": "unavailable",
        "nvlink_bytes": "agrees" if road == "cuda_ipc" else "unavailable",
        "telemetry": "agrees",
    }


def test_the_outcome_is_what_the_cell_file_holds():
    record = json.loads(json.dumps(asdict(judge_raw(SAMPLES / "raw" / "shm_four_threads"))))
    assert set(record) == {
        *("outcome", "reason", "expected", "seen", "where", "quote", "repeats", "witnesses"),
        *("attempt", "run_id", "measured_at"),
    }
    assert set(record["witnesses"][0]) >= {"name", "status", "expected", "seen", "where"}
    assert "\n" not in record["reason"]


def test_without_use_counts_the_interface_confirms(raw):
    folder = raw("tcp_four_threads")
    edit_claim(folder, use_counts=False)
    outcome = judge_raw(folder)
    assert (outcome.outcome, statuses(outcome)["use_counts"]) == ("proven", "unavailable")


# -- the wrong road


def test_a_fall_back_to_tcp_is_refused_with_both_roads_and_the_line():
    outcome = judge_raw(SAMPLES / "raw" / "roce_falls_to_tcp")
    assert (outcome.outcome, outcome.seen) == ("refused", "tcp")
    assert outcome.expected == ["rc_mlx5", "rc_verbs"]
    assert outcome.reason.startswith(
        "claimed roce (rc_mlx5 or rc_verbs) but the reads went by software emulation over tcp/lo "
        "(decode-0.log:28): UCX has no 'rc','cuda_copy' on this host"
    )
    assert "software emulation | tcp/lo" in outcome.quote
    assert outcome.repeats


def test_nvlink_that_falls_back_to_tcp_is_contradicted_by_all_who_can_tell():
    outcome = judge_raw(SAMPLES / "raw" / "nvlink_falls_to_tcp")
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "tcp", True)
    assert outcome.reason == (
        "claimed nvlink (cuda_ipc) but the reads went by software emulation over tcp/lo "
        "(decode-0.log:27)"
    )
    seen = statuses(outcome)
    assert seen["interface_bytes"] == seen["nvlink_bytes"] == seen["use_counts"] == "contradicts"
    counts = next(w for w in outcome.witnesses if w.name == "use_counts")
    assert counts.seen.startswith("2340 of 2340 reads counted went by software emulation")


def test_nvlink_counters_that_stood_still_contradict(raw):
    folder = raw("nvlink_read")
    edit_rows(
        folder / "counters.jsonl",
        lambda row: {**row, "nvlink": {g: {"rx_kib": 7, "tx_kib": 7} for g in "01"}},
    )
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "nvlink counters saw 0 bytes" in outcome.reason


def test_a_road_stopped_after_warm_up_is_judged_by_its_warm_up():
    outcome = judge_raw(SAMPLES / "raw" / "roce_falls_to_tcp")
    seen = statuses(outcome)
    assert seen["interface_bytes"] == "contradicts"
    assert seen["use_counts"] == "contradicts"


def test_emulation_on_an_rdma_device_is_no_rdma_road(raw):
    folder = raw("shm_four_threads")
    edit_claim(folder, transport="roce", roads=["rc_mlx5"], environment={})
    edit(
        folder / "decode-0.log", "zero-copy   | cma/memory", "software emulation | rc_mlx5/mlx5_0:1"
    )
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "the reads went by software emulation over rc_mlx5/mlx5_0:1" in outcome.reason
    assert outcome.seen == "rc_mlx5 (software emulation)"
    edit(folder / "decode-0.log", "software emulation | rc_mlx5", "zero-copy | rc_mlx5")
    assert judge_raw(folder).outcome == "proven"


def test_half_of_the_traffic_on_another_transport_is_the_wrong_road(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "cma/memory    ", "50% on cma/memory and 50% on tcp/lo", count=1)
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen) == ("refused", "cma+tcp")


def test_one_wrong_worker_of_four_is_enough(raw):
    folder = raw("shm_four_threads")
    edit(
        folder / "decode-0.log", "zero-copy   | cma/memory", "software emulation | tcp/lo", count=1
    )
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert (
        "claimed shm (cma) but the reads went by software emulation over tcp/lo" in outcome.reason
    )
    assert (outcome.seen, outcome.repeats) == ("tcp+cma", True)


def test_a_worker_without_a_row_for_the_descriptors(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "| 0..inf | zero-copy", "| 0..16K | zero-copy", count=1)
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "has no row for 32768 bytes" in outcome.reason


def test_tables_of_another_operation_are_not_the_road(raw):
    folder = raw("shm_push")
    edit_claim(folder, operation="read")
    shutil.copy(folder / "prefill-0.log", folder / "decode-0.log")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "unknown", False)
    assert "UCX printed no `remote memory read` table of host memory" in outcome.reason


def test_tables_of_other_memory_are_not_the_road(raw):
    folder = raw("shm_four_threads")
    edit_claim(folder, memory="VRAM")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen) == ("refused", "unknown")
    assert statuses(outcome)["protocol_table"] == "unavailable"
    assert "(intra-node: remote memory read by ucp_get*(multi) into host memory" in outcome.reason


def test_gpu_memory_read_from_a_host_is_not_the_road(raw):
    folder = raw("nvlink_read")
    edit(folder / "decode-0.log", "GPU1 from cuda/dev[2]", "GPU1 from host")
    assert statuses(judge_raw(folder))["protocol_table"] == "unavailable"


def test_tables_to_the_process_itself_are_not_the_road(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "| decode-0 intra-node cfg", "| decode-0 self cfg")
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert statuses(outcome)["protocol_table"] == "unavailable"
    assert "went by zero-copy over cma/memory (self: remote memory read" in outcome.reason


def test_no_table_because_the_process_died_at_its_exit(raw):
    folder = raw("shm_four_threads")
    log = folder / "decode-0.log"
    log.write_text("".join(t for t in log.read_text().splitlines(True) if "   |" not in t))
    edit_rows(
        folder / "events.jsonl",
        lambda row: {**row, "returncode": -11} if row["event"] == "exit" else row,
    )
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("refused", False)
    assert "decode-0 ended with status -11" in outcome.reason


def test_a_cut_table_proves_nothing(raw):
    folder = raw("shm_four_threads")
    log = folder / "decode-0.log"
    lines = log.read_text().splitlines(True)
    last = max(n for n, line in enumerate(lines) if "+---" in line)
    log.write_text("".join(lines[:last]))
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "a table is cut" in outcome.reason


def test_a_wrong_row_counts_more_than_a_cut_table(raw):
    folder = raw("shm_four_threads")
    log = folder / "decode-0.log"
    lines = log.read_text().splitlines(True)
    last = max(n for n, line in enumerate(lines) if "+---" in line)
    log.write_text("".join(lines[:last]))
    edit(log, "zero-copy   | cma/memory", "zero-copy   | tcp/lo", count=1)
    outcome = judge_raw(folder)
    assert "the reads went by zero-copy over tcp/lo" in outcome.reason
    assert outcome.repeats


# -- use counts


def test_counts_short_of_the_descriptors(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "|  2784 |", "|  2783 |")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("refused", False)
    assert "UCX counted 8799 reads on the claimed road for 8800 descriptors moved" in outcome.reason


def test_pieces_may_be_more_than_the_descriptors(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "|  2784 | 0..inf | zero-copy", "| 99784 | 0..inf | copy-out ")
    assert judge_raw(folder).outcome == "proven"


def test_counts_on_another_road(raw):
    folder = raw("shm_four_threads")
    log = folder / "decode-0.log"
    row = next(t for t in log.read_text().splitlines(True) if "|  2784 |" in t)
    small = row.replace(
        "|  2784 | 0..inf | zero-copy   | cma/memory", "|    12 | 0..1K | short | sysv/memory"
    )
    edit(log, row, small + row.replace("0..inf", "1025..inf"))
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "12 of 8812 reads counted went by short over sysv/memory" in outcome.reason
    edit(log, "|    12 |", "|     0 |")
    assert judge_raw(folder).outcome == "proven"


def test_counts_on_other_memory_are_on_another_road(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "into host memory from host", "into cuda/GPU0 from host", count=1)
    assert statuses(judge_raw(folder))["use_counts"] == "contradicts"


def test_each_rank_must_have_moved_its_own_descriptors(raw):
    folder = raw("shm_four_threads")
    edit_claim(folder, ranks=2)
    shutil.copy(folder / "decode-0.log", folder / "decode-1.log")
    rows = (folder / "pulls-0.jsonl").read_text().replace('"rank": 0', '"rank": 1')
    (folder / "pulls-1.jsonl").write_text(rows)
    assert judge_raw(folder).outcome == "proven"
    edit(folder / "decode-1.log", "|  2784 |", "|   784 |")
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert "counted 6800 reads" in outcome.reason
    (folder / "decode-1.log").unlink()
    assert "(decode-1.log)" in judge_raw(folder).reason


def test_scatter_gather_writes_count_transfers(raw):
    folder = raw("nvlink_push_sgl")
    outcome = judge_raw(folder)
    assert outcome.outcome == "proven"
    counts = next(w for w in outcome.witnesses if w.name == "use_counts")
    assert counts.seen == "27 counted for 9 transfers moved"
    for used in ("7", "6", "9", "5"):
        edit(folder / "prefill-0.log", f"|     {used} | 0..inf | sgl", "|     2 | 0..inf | sgl")
    assert "counted 8 writes on the claimed road for 9 transfers" in judge_raw(folder).reason


def test_scatter_gather_over_tcp_is_emulated_and_counts_descriptors():
    outcome = judge_raw(SAMPLES / "raw" / "tcp_push_sgl")
    assert (outcome.outcome, outcome.seen) == ("proven", "tcp")
    assert outcome.reason.startswith("writes went by sgl software emulation over tcp/lo")
    counts = next(w for w in outcome.witnesses if w.name == "use_counts")
    assert counts.seen == "3527 counted for 3520 descriptors moved"


def test_scatter_gather_over_shm_is_emulated_by_the_peer_and_refused():
    outcome = judge_raw(SAMPLES / "raw" / "shm_push_sgl")
    assert (outcome.outcome, outcome.seen, outcome.repeats) == (
        "refused",
        "cma (software emulation)",
        True,
    )
    assert "the writes went by sgl software emulation over cma/memory" in outcome.reason


# -- environment


def test_a_variable_that_did_not_arrive(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "UCX_TLS=cma,tcp", "")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.seen, outcome.repeats) == ("refused", "cma", True)
    assert "claimed shm (cma) but UCX_TLS did not arrive (decode-0.log:2)" in outcome.reason


@pytest.mark.parametrize("log", ["decode-0.log", "prefill-0.log"])
def test_a_variable_that_arrived_otherwise(raw, log):
    folder = raw("shm_four_threads")
    edit(folder / log, "UCX_TLS=cma,tcp", "UCX_TLS=tcp")
    outcome = judge_raw(folder)
    assert outcome.outcome == "refused"
    assert f"UCX_TLS arrived as 'tcp', asked was 'cma,tcp' ({log}:2)" in outcome.reason


def test_no_environment_line_of_the_process_whose_table_is_used(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "UCX_* env variables", "other variables")
    outcome = judge_raw(folder)
    assert (outcome.outcome, outcome.repeats) == ("refused", False)
    assert "UCX printed no `UCX_* env variables` line of process" in outcome.reason


def test_an_environment_line_that_ucx_cut(raw):
    folder = raw("shm_four_threads")
    edit(folder / "decode-0.log", "UCX_TLS=cma,tcp", "")
    edit(folder / "decode-0.log", "UCX_LOG_LEVEL=info", "UCX_LOG_LEVEL=info UCX_B=" + "b" * 1000)
    assert "a larger UCX_LOG_BUFFER shows it" in judge_raw(folder).reason
