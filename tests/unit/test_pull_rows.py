import json

import pytest

from kvroad.evidence.nixl import parse_pulls

ROW = {
    "cell": "c",
    "phase": "in_flight",
    "pull": 3,
    "rank": 1,
    "operation": "read",
    "in_flight": 4,
    "descriptors_planned": 2340,
    "descriptors_given": 2340,
    "descriptors_moved": 2340,
    "bytes_planned": 306708480,
    "bytes_moved": 306708480,
    "post_us": 28489,
    "xfer_us": 28489,
    "wall_us": 28500.5,
    "start_mono_ns": 5,
    "state": "DONE",
    "verified": True,
    "error": None,
}


def one(**fields):
    log = parse_pulls([json.dumps({**ROW, **fields})], "pulls-1.jsonl")
    assert log.problems == ()
    return log.pulls[0]


def test_a_row_is_read_with_its_line():
    pull = one()
    assert (pull.where, pull.rank, pull.bytes_moved) == ("pulls-1.jsonl:1", 1, 306708480)
    assert (pull.is_done, pull.is_warmup) == (True, False)
    assert one(phase="warmup").is_warmup


def test_a_transfer_that_ended_in_its_post_is_good():
    assert one().drop_reason is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"post_us": 5, "xfer_us": 4}, "data error: post 5 us > transfer 4 us"),
        ({"state": "ERR", "error": "NIXL_ERR_BACKEND"}, "state ERR: NIXL_ERR_BACKEND"),
        ({"state": "PROC"}, "state PROC"),
        ({"error": "gone"}, "state DONE: gone"),
        ({"post_us": None}, "no telemetry"),
    ],
)
def test_rows_that_are_dropped(fields, reason):
    assert one(**fields).drop_reason == reason


def test_bytes_that_were_not_compared():
    assert one(verified=None).verified is None
    assert one(verified=False).verified is False


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"cell": "c"', "not a pull"),
        ("[1]", "not a pull"),
        (json.dumps({k: v for k, v in ROW.items() if k != "bytes_planned"}), "'bytes_planned'"),
        (json.dumps({**ROW, "verified": "yes"}), "verified is 'yes'"),
        (json.dumps({**ROW, "pull": "x"}), "not a pull"),
    ],
)
def test_lines_that_are_no_pulls_are_kept_as_problems(line, reason):
    log = parse_pulls([json.dumps(ROW), "\n", line], "p.jsonl")
    assert len(log.pulls) == 1
    assert [p.where for p in log.problems] == ["p.jsonl:3"]
    assert reason in log.problems[0].reason
