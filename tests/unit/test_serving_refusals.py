"""What refuses a cell of serving engines: a real launch, and one thing of it changed at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from raw_folders import SAMPLES, copy_raw, edit, statuses
from serving_changes import (
    CELL,
    PHASE,
    REQUESTS,
    Change,
    a_second_thread,
    add,
    both,
    claim,
    drop_a_row,
    fail,
    judged,
    labels,
    load,
    metric,
    no_threads,
    rows,
    said,
    text,
)

from kvroad.evidence.serving import cache_check_of, served_phase
from kvroad.evidence.vllm import parse_kv_lines
from kvroad.plan import Claim, Serving
from kvroad.proof.raw import Evidence, read_raw
from kvroad.proof.witnesses.serving import cache_check, kv_log


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a copy of a launch of Dynamo 1.6.1 with vLLM 0.31 and aiperf, one cell of it."""
    return copy_raw("served_shm", tmp_path)


def test_the_launch_itself_is_proven(raw: Path) -> None:
    outcome = judged(raw)
    assert outcome.outcome == "proven", outcome.reason
    agreeing = {name for name, status in statuses(outcome).items() if status == "agrees"}
    assert agreeing == {
        *("environment", "protocol_table", "interface_bytes", "telemetry", "load", "options")
    }
    telemetry = next(w for w in outcome.witnesses if w.name == "telemetry")
    assert "43.2 descriptors each where the layout predicts 64 (NIXL merges" in telemetry.seen
    assert "4,194,304 bytes each as predicted" in telemetry.seen


COUNT, XFER = "vllm:nixl_xfer_time_seconds_count", "vllm:nixl_xfer_time_seconds_sum"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add("vllm:nixl_num_failed_transfers_total", 1), "1 transfers failed in phase in_flight"),
        (add("vllm:nixl_num_failed_transfers_total", 1, "prefill"), "1 transfers failed"),
        (add("vllm:nixl_num_failed_notifications_total", 2), "2 notifications failed"),
        (add("vllm:nixl_num_failed_notifications_total", 2, "prefill"), "2 notifications failed"),
        (add("vllm:nixl_num_kv_expired_reqs_total", 1), "1 requests' KV blocks expired"),
        (add("vllm:nixl_num_kv_expired_reqs_total", 3, "prefill"), "3 requests' KV blocks expired"),
        (add(COUNT, 1), "17 transfers in phase in_flight for 16 requests, 16 were planned"),
        (add(COUNT, -1), "15 transfers in phase in_flight for 16 requests, 16 were planned"),
        (add(XFER, -100), "decode's counters fell in phase in_flight"),
        (add(BY_SOURCE, 2048, source="local_compute"), "decode computed 2048 prompt tokens itself"),
        (add(BY_SOURCE, 128, source="local_cache_hit"), "128 prompt tokens in its own cache"),
        (rows(fail), "1 of 16 requests of phase in_flight failed: boom"),
        (drop_a_row, "1 of 16 requests of phase in_flight failed: requests are missing"),
        (load(returncode=1, error="aiperf died"), "phase in_flight: aiperf died"),
        (rows(metric("usage_completion_tokens", 15)), "has 15 output tokens, asked were 16"),
        (rows(metric("usage_prompt_tokens", 2100)), "has 2100 tokens, asked were 2048"),
        (
            text("decode-0.log", "LLM engine (v0.31.0", "LLM engine (v0.30.2"),
            "engine.serving.vllm_version did not take effect: decode-0 does not say",
        ),
        (
            text("prefill-0.log", "LLM engine (v0.31.0", "LLM engine (v0.30.2"),
            "engine.serving.vllm_version did not take effect: prefill-0 does not say",
        ),
        (
            text("decode-0.log", "tensor_parallel_size=1,", "tensor_parallel_size=2,"),
            "engine.tensor_parallel_size did not take effect",
        ),
        (
            labels('block_size="128"', 'block_size="16"'),
            "workload.block_tokens did not take effect: block_size is 16, asked was 128",
        ),
        (
            labels('enable_prefix_caching="False"', 'enable_prefix_caching="True"'),
            "prefix caching did not take effect: enable_prefix_caching is True, asked was False",
        ),
        (
            labels("vllm:cache_config_info", "vllm:other_info"),
            "decode does not tell its block_size (workload.block_tokens)",
        ),
        (
            said("engine.serving.cross_layer_blocks", "Allocating a cross layer KV cache"),
            "engine.serving.cross_layer_blocks did not take effect: decode-0 does not say",
        ),
        (
            both(
                said("cross_layer_blocks", "Allocating a cross layer KV cache", is_there=False),
                text("decode-0.log", "Initializing a V1", "Allocating a cross layer KV cache V1"),
            ),
            "cross_layer_blocks did not take effect: decode-0 says `Allocating a cross layer",
        ),
        (
            said("engine.serving.kv_cache_layout", "Using HND KV cache layout"),
            "engine.serving.kv_cache_layout did not take effect",
        ),
        (
            both(no_threads, a_second_thread),
            "engine.num_threads=0 did not take effect: 2 threads of process 31455 post",
        ),
        (
            text("decode-0.log", "Num successful transfers=9", "Num successful transfers=90"),
            "lines tell 100 of 27 transfers",
        ),
    ],
)
def test_one_change_refuses_the_cell(raw: Path, change: Change, reason: str) -> None:
    change(raw)
    outcome = judged(raw)
    assert outcome.outcome == "refused"
    assert reason in outcome.reason
    assert not outcome.repeats
    assert "\n" not in outcome.reason


@pytest.mark.parametrize("name", ["decode.start.prom", "decode.end.prom"])
def test_a_phase_without_metrics_is_refused(raw: Path, name: str) -> None:
    (raw / PHASE / name).unlink()
    outcome = judged(raw)
    assert outcome.outcome == "refused"
    assert "no metrics of phase in_flight" in outcome.reason


def test_that_aiperf_exits_with_0_is_not_believed(raw: Path) -> None:
    rows(fail, (2, 5))(raw)
    assert json.loads((raw / PHASE / "load.json").read_text())["returncode"] == 0
    assert "2 of 16 requests of phase in_flight failed: boom" in judged(raw).reason


def test_failed_requests_below_the_stated_share_are_left_out_and_counted(raw: Path) -> None:
    both(rows(fail), add(COUNT, -1), claim(failed_share_at_most=0.1))(raw)
    outcome = judged(raw)
    assert outcome.outcome == "proven", outcome.reason
    witness = next(w for w in outcome.witnesses if w.name == "load")
    assert witness.seen == "25 requests with lengths as asked, 1 failed and left out"
    # What was asked and not answered may lack its transfer, and nothing else may.
    add(COUNT, -1)(raw)
    assert "14 transfers in phase in_flight" in judged(raw).reason


@pytest.mark.parametrize(
    "change",
    [
        # Decode computes the last token of a prompt that ends on a block.
        add(BY_SOURCE, 40, source="local_compute"),
        # A tokenizer may put a token of its own in front.
        rows(metric("usage_prompt_tokens", 2049), tuple(range(REQUESTS))),
        no_threads,
        # Four posting threads were asked for, and each prints a table.
        a_second_thread,
        add("vllm:nixl_num_descriptors_sum", 64),
    ],
)
def test_what_is_no_fault_stays_proven(raw: Path, change: Change) -> None:
    change(raw)
    outcome = judged(raw)
    assert outcome.outcome == "proven", outcome.reason


class TestAlone:
    """One engine that serves alone: the same launch with decode's transfers taken out of it."""

    @pytest.fixture
    def alone(self, raw: Path) -> Path:
        plan = json.loads((raw / "plan.json").read_text())
        plan["claim"]["transport"] = "none"
        plan["claim"]["serving"] |= {"is_aggregated": True, "labels": [], "log_lines": []}
        for phase in plan["cells"][0]["phases"]:
            phase["pulls"] = 0
        (raw / "plan.json").write_text(json.dumps(plan))
        for path in raw.glob("serving/*/*/decode.end.prom"):
            start = path.with_name("decode.start.prom").read_text()
            source = re.compile(rf'^({BY_SOURCE}\{{.*source="local_compute".*\}}) \S+$', re.M)
            path.write_text(source.sub(r"\1 50000", start))
        return raw

    def test_no_transfer_is_its_proof(self, alone: Path) -> None:
        outcome = judged(alone)
        assert (outcome.outcome, outcome.seen) == ("proven", "none")
        assert outcome.reason.startswith("no transfer in 26 requests: one engine served alone")
        assert set(statuses(outcome)) == {"telemetry", "load", "options"}

    @pytest.mark.parametrize("name", [COUNT, "vllm:nixl_bytes_transferred_sum"])
    def test_a_transfer_refuses_it(self, alone: Path, name: str) -> None:
        add(name, 1)(alone)
        outcome = judged(alone)
        assert outcome.outcome == "refused"
        assert "transfers of an engine that serves alone" in outcome.reason

    def test_prompts_that_it_did_not_compute_refuse_it(self, alone: Path) -> None:
        end = alone / PHASE / "decode.end.prom"
        end.write_text((alone / PHASE / "decode.start.prom").read_text())
        assert "computed none of the prompts that it answered" in judged(alone).reason


class TestLogLines:
    """The second telling of the same transfers, on logs and metrics of whole launches."""

    def evidence(self, name: str, log: Callable[[str], str] = str) -> Evidence:
        folder = SAMPLES / "serving"
        prom = {"decode.end.prom": (folder / f"{name}_decode.prom").read_text()}
        lines = log((folder / f"{name}_decode.log").read_text(errors="replace")).split("\n")
        launch = Claim("tcp", ["tcp"], "read", "DRAM", 65536, {}, serving=Serving(1, 65536, 16))
        return Evidence(
            *(launch, {}, (), (), (), {}),
            served=(served_phase("c", "in_flight", {}, prom),),
            kv_lines=parse_kv_lines(lines, "decode-0.log"),
        )

    @pytest.mark.parametrize(
        "name", ["vllm023_nvlink", "vllm023_tcp", "dynamo161_shm", "dynamo161_tcp"]
    )
    def test_they_agree_with_the_metrics(self, name: str) -> None:
        assert kv_log(self.evidence(name)).status == "agrees"

    @pytest.mark.parametrize(
        ("old", "new", "status"),
        [
            ("Num successful transfers=1,", "Num successful transfers=2,", "contradicts"),
            ("Avg xfer time (ms)=805.512", "Avg xfer time (ms)=806.512", "contradicts"),
            ("Avg MB per transfer=8.0", "Avg MB per transfer=8.1", "contradicts"),
            ("KV Transfer metrics: Num", "KV Transfer met", "unavailable"),
        ],
    )
    def test_a_line_that_says_otherwise_contradicts(self, old: str, new: str, status: str) -> None:
        def change(log: str) -> str:
            assert old in log
            return log.replace(old, new, 1)

        witness = kv_log(self.evidence("dynamo161_shm", change))
        assert witness.status == status
        assert witness.where.startswith("decode-0.log:")

    def test_another_number_of_transfers_with_the_same_sums_contradicts(self) -> None:
        def halved(log: str) -> str:
            for old, new in (
                (
                    "transfers=1, Avg xfer time (ms)=805.512",
                    "transfers=2, Avg xfer time (ms)=402.756",
                ),
                ("Avg MB per transfer=8.0", "Avg MB per transfer=4.0"),
            ):
                assert old in log
                log = log.replace(old, new, 1)
            return log

        assert kv_log(self.evidence("dynamo161_shm", halved)).status == "contradicts"

    def test_lines_behind_the_last_snapshot_of_a_broken_launch_say_nothing(self) -> None:
        def more(log: str) -> str:
            return log.replace("Num successful transfers=1,", "Num successful transfers=5,", 1)

        whole = self.evidence("dynamo161_shm", more)
        for status, answer in (("complete", "contradicts"), ("failed", "unavailable")):
            ended = replace(whole, events=({"event": "end", "status": status},))
            assert kv_log(ended).status == answer

    def test_without_lines_nothing_is_said(self) -> None:
        assert kv_log(self.evidence("dynamo161_shm", lambda log: "")).status == "unavailable"


class TestCacheCheck:
    @pytest.mark.parametrize(
        ("told", "word", "status"),
        [
            ("equal", "equal", "agrees"),
            ("equal: 8 blocks in 32 caches", "equal", "agrees"),
            ("not checked: no digests of prefill", "not checked", "unavailable"),
            ("different", "different", "contradicts"),
            ("perhaps", "not checked", "unavailable"),
            (None, "not checked", "unavailable"),
        ],
    )
    def test_the_drivers_ready_event_tells(self, raw: Path, told: str, word: str, status: str):
        evidence = read_raw(raw, CELL)
        ready = {"event": "ready", "process": "driver", "cache_check": told}
        evidence = replace(evidence, events=(*evidence.events, ready))
        assert cache_check_of(evidence.events) == word
        assert cache_check(evidence).status == status

    def test_other_blocks_refuse_the_cell(self, raw: Path) -> None:
        old = '"event": "ready", "process": "driver"'
        edit(raw / "events.jsonl", old, f'{old}, "cache_check": "different"')
        outcome = judged(raw)
        assert outcome.outcome == "refused"
        assert "decode's blocks of the probe differ from prefill's" in outcome.reason

    def test_equal_blocks_alone_prove_no_road(self, raw: Path) -> None:
        old = '"event": "ready", "process": "driver"'
        edit(raw / "events.jsonl", old, f'{old}, "cache_check": "equal"')
        (raw / "counters.jsonl").write_text("")
        assert "no use count and no byte counter is there" in judged(raw).reason
