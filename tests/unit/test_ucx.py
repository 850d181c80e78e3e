import re
from pathlib import Path

import pytest

from kvroad.evidence.ucx import UcxParser, parse_lines, parse_range, parse_shares
from kvroad.evidence.ucx_records import ProtocolTable, Share, UcxLog

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
LOGS = sorted([*SAMPLES.glob("ucx/*"), *SAMPLES.glob("serving/*"), *SAMPLES.glob("raw/*/*.log")])
STAMP = "[1796000398.263504] [vm:5176 :0] "


def read(name: str) -> UcxLog:
    with (SAMPLES / name).open(errors="replace", newline="\n") as lines:
        return parse_lines(lines, Path(name).name)


def of(log: UcxLog, operation: str) -> list[ProtocolTable]:
    return [t for t in log.tables if t.operation == operation]


def printed(*lines: str, prefix: str = STAMP) -> UcxLog:
    return parse_lines([f"{prefix}  {line}\n" for line in lines], "made.log")


@pytest.mark.parametrize("path", LOGS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_table_of_every_sample_is_read_with_its_line(path):
    # Progress bars end their lines with a carriage return alone, which is no line end.
    text = path.read_bytes().decode(errors="replace").split("\n")
    log = read(str(path.relative_to(SAMPLES)))
    for operation in ("read", "write"):
        titles = [n for n, t in enumerate(text, 1) if f"| remote memory {operation} by" in t]
        assert sorted(t.line for t in of(log, operation)) == titles
    rows = [n for n, t in enumerate(text, 1) if re.search(r"\|( *\d+)? +\d+(\.\.\w+)? \| \w", t)]
    assert sorted(r.line for t in log.tables for r in t.rows) == rows
    assert all(t.is_complete for t in log.tables)
    assert all(r.shares for t in log.tables for r in t.rows)


def test_old_format_with_use_counts():
    log = read("ucx/ucx121_nixl131_tcp_protoinfo_used.log")
    (table,) = of(log, "read")
    (row,) = table.rows
    assert (row.count, row.min_bytes, row.max_bytes) == (3, 0, None)
    assert str(row) == "software emulation over tcp/lo"
    assert row.is_emulation
    assert (table.context, table.scope, table.configuration) == ("ucp_context_0", "intra-node", 1)
    assert row.where == "ucx121_nixl131_tcp_protoinfo_used.log:21"
    (messages,) = of(log, "active_message")
    assert [(r.count, r.min_bytes, r.max_bytes) for r in messages.rows] == [
        (None, 0, 0),
        (3, 1, 16515),
        (0, 16516, None),
    ]


def test_old_format_without_use_counts():
    (table,) = of(read("ucx/ucx121_nixl131_cma_protoinfo_y.log"), "read")
    assert not table.has_counts
    assert str(table.row_for(65536)) == "zero-copy over cma/memory"


def test_new_format_with_use_counts():
    log = read("ucx/ucx123_nixl151_tcp_protoinfo_used.log")
    (table,) = of(log, "read")
    assert table.has_counts
    assert table.rows[0].count == 3 * 2350
    assert (table.context, table.pid, table.tid) == ("decode", 27864, 0)
    assert (table.local_memory, table.remote_memory) == ("host", "host")
    assert table.api == "ucp_get*(multi)"


def test_new_format_without_use_counts():
    log = read("ucx/ucx123_nixl151_cma_protoinfo_y.log")
    (table,) = of(log, "read")
    assert not table.has_counts
    assert {t.scope for t in of(log, "write")} == {"self", "intra-node"}


def test_version_and_environment():
    log = read("ucx/ucx123_nixl151_tcp_protoinfo_used.log")
    assert [(v.pid, v.version) for v in log.versions] == [(27864, "1.23.0")]
    assert log.versions[0].library == "/opt/venv/lib/libucp-b39b3ed9.so.0.0.0"
    (line,) = log.environments
    assert line.pid == 27864
    assert line.variables == {
        "UCX_TLS": "tcp",
        "UCX_PROTO_INFO": "used",
        "UCX_LOG_LEVEL": "info",
    }
    assert not line.is_cut


def test_threads_of_one_process_print_into_each_other():
    log = read("serving/vllm023_tcp_decode.log")
    reads = of(log, "read")
    assert {t.tid for t in reads} == {2, 3, 4, 5}
    assert {str(t.row_for(131072)) for t in reads} == {"software emulation over tcp/lo"}
    assert {(t.local_memory, t.local_device, t.remote_memory) for t in reads} == {
        ("cuda", "GPU0", "cuda")
    }


def test_gpu_memory_and_system_devices():
    reads = of(read("serving/vllm023_nvlink_decode.log"), "read")
    assert len(reads) == 4
    assert {(t.local_device, t.remote_device, t.pid) for t in reads} == {("GPU0", "dev[0]", 1557)}
    assert {t.rows[0].transports for t in reads} == {("cuda_ipc",)}


def test_lane_lines_are_kept_apart_from_tables():
    log = read("serving/vllm023_nvlink_decode.log")
    lanes = log.lanes[0].lanes
    assert lanes["am"] == ("tcp/lo", "tcp/eth0", "cuda_ipc/cuda")
    assert lanes["rma_am"] == ("tcp/lo",)


def test_a_share_over_two_devices():
    tables = of(read("serving/vllm023_nvlink_decode.log"), "write")
    row = next(t.rows[0] for t in tables if len(t.rows[0].shares) == 2)
    assert row.shares == (Share("tcp", "lo", None, 0.52), Share("tcp", "eth0", None, 0.48))
    assert str(row) == "zero-copy over tcp/lo + tcp/eth0"


def test_tables_of_several_workers_that_one_thread_prints():
    tables = of(read("raw/shm_four_threads/decode-0.log"), "read")
    assert len(tables) == 4
    assert sum(t.rows[0].count or 0 for t in tables) == 5 * 1760


def test_complaints_of_ucx_and_nixl():
    log = read("raw/rc_x_cannot_start/prefill-0.log")
    said = [(c.speaker, c.level) for c in log.complaints]
    assert said[:3] == [("UCX", "WARN"), ("UCX", "ERROR"), ("NIXL", "ERROR")]
    assert log.complaints[0].message.startswith("transports 'rc_x','cuda_copy' are not available")
    assert any("NIXL_ERR_BACKEND" in c.message for c in log.complaints)


def test_diagnostic_lines_are_no_complaints():
    assert read("serving/vllm023_nvlink_decode.log").complaints == ()


def test_fatal_lines_have_a_prefix_of_their_own():
    # As in a public report of UCX 1.8 (openucx/ucx issue 5199).
    line = (
        "[master:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB "
        "(synd 0x15 vend 0x81 hw_synd 0/0)\n"
    )
    (complaint,) = parse_lines([line], "x.log").complaints
    assert (complaint.level, complaint.pid) == ("FATAL", 19546)


def test_colours_and_prefixes_of_other_loggers_are_passed_over():
    plain = (SAMPLES / "ucx/ucx123_nixl151_tcp_protoinfo_used.log").read_text().splitlines(True)
    wrapped = [f"\x1b[0;36m(EngineCore pid=7)\x1b[0;0m {line}" for line in plain]
    dressed = parse_lines(wrapped, "a.log")
    bare = parse_lines(plain, "a.log")
    assert [t.rows[0].count for t in dressed.tables] == [t.rows[0].count for t in bare.tables]
    assert dressed.environments[0].variables == bare.environments[0].variables


def test_two_processes_that_print_line_by_line_into_one_log():
    first = (SAMPLES / "ucx/ucx121_nixl131_tcp_protoinfo_used.log").read_text().splitlines(True)
    second = (SAMPLES / "ucx/ucx123_nixl151_tcp_protoinfo_used.log").read_text().splitlines(True)
    mixed = [line for pair in zip(first, second, strict=False) for line in pair]
    mixed += second[len(first) :]
    reads = of(parse_lines(mixed, "both.log"), "read")
    assert sorted((t.pid, t.rows[0].count) for t in reads) == [(26362, 3), (27864, 7050)]


def test_scatter_gather_writes():
    tables = of(read("raw/nvlink_push_sgl/prefill-0.log"), "write")
    assert [t.rows[0].count for t in tables] == [7, 6, 9, 5]
    assert {(t.is_sgl, t.api, t.local_device, t.remote_device) for t in tables} == {
        (True, "ucp_put*", "GPU0", "dev[3]")
    }
    assert not any(t.is_sgl for t in of(read("raw/shm_push/prefill-0.log"), "write"))


def test_handmade_table_within_a_levelled_line():
    # Handmade from UCX up to 1.13, which logged tables line by line with source and level.
    log = printed(
        "proto_debug.c:406  UCX  INFO  +-----------------+----------------------------+",
        "proto_debug.c:406  UCX  INFO  | mpi self cfg#3  | remote memory read by ucp_get* into "
        "host memory from host |",
        "proto_debug.c:406  UCX  INFO  +-----------------+-----------+----------------+",
        "proto_debug.c:406  UCX  INFO  |          0..inf | zero-copy | rc_mlx5/mlx5_0:1 |",
        "proto_debug.c:406  UCX  INFO  +-----------------+-----------+----------------+",
    )
    assert str(log.tables[0].rows[0]) == "zero-copy over rc_mlx5/mlx5_0:1"


def test_handmade_estimates_lose_their_mark():
    # Handmade from the documented "(?) " prefix.
    log = printed(
        "+----------------------+------------------------------------------------------------+",
        "| x inter-node cfg#1   | remote memory read by ucp_get* into host memory from host  |",
        "+----------------------+-------------------------------+----------------------------+",
        "|               0..64K | (?) copy-out                  | rc_mlx5/mlx5_0:1           |",
        "|           65537..inf | zero-copy                     | rc_mlx5/mlx5_0:1           |",
        "+----------------------+-------------------------------+----------------------------+",
    )
    low, high = log.tables[0].rows
    assert (low.description, low.is_estimate, low.max_bytes) == ("copy-out", True, 65536)
    assert (high.is_estimate, log.tables[0].scope) == (False, "inter-node")
    assert log.tables[0].row_for(65536) is low


def test_a_table_that_ends_within_the_log_is_not_complete():
    lines = (SAMPLES / "ucx/ucx123_nixl151_tcp_protoinfo_used.log").read_text().splitlines(True)
    tables = parse_lines(lines[:-1], "x").tables
    assert [t.is_complete for t in tables] == [True, False]
    assert tables[1].rows[0].count == 7050


def test_an_unreadable_row_makes_the_table_incomplete():
    text = (SAMPLES / "ucx/ucx123_nixl151_tcp_protoinfo_used.log").read_text()
    broken = text.replace("|  7050 | 0..inf |", "|  70x0 | 0..inf |")
    (table,) = of(parse_lines(broken.splitlines(True), "x"), "read")
    assert (table.rows, table.is_complete) == ((), False)


def test_a_parser_that_is_fed_line_by_line_can_be_asked_at_any_time():
    parser = UcxParser("x")
    counts = []
    text = (SAMPLES / "ucx/ucx121_nixl131_cma_protoinfo_y.log").read_text()
    for line in text.splitlines(True):
        parser.feed(line)
        counts.append(sum(t.is_complete for t in parser.log().tables))
    assert counts == sorted(counts)
    assert counts[-1] == 17
    assert parser.log() == parse_lines(text.splitlines(True), "x")


def test_the_last_lines_are_kept_with_their_numbers():
    log = parse_lines((f"line {n}\n" for n in range(1, 1001)), "x.log")
    assert [(r.where, r.text) for r in log.last_lines][-1] == ("x.log:1000", "line 1000")
    assert log.n_lines == 1000


def test_a_flood_of_complaints_is_counted_and_not_kept():
    line = f"{STAMP}  ib.c:1  UCX  ERROR no way\n"
    log = parse_lines([line] * 5000, "x")
    assert log.n_complaints == 5000
    assert len(log.complaints) < 1000


def environment(text: str) -> UcxLog:
    return parse_lines([f"{STAMP}         parser.c:2587 UCX  INFO  {text}\n"], "x")


def test_values_with_blanks_and_equal_signs():
    (line,) = environment(
        "UCX_* env variables: UCX_MODULES=a b,c UCX_X=k=v UCX_TLS=rc,tcp "
    ).environments
    assert line.variables == {"UCX_MODULES": "a b,c", "UCX_X": "k=v", "UCX_TLS": "rc,tcp"}


def test_an_environment_line_that_fills_ucx_s_buffer_is_marked():
    text = "UCX_* env variables: UCX_TLS=tcp UCX_POSIX_DIR=/"
    (line,) = environment(text + "a" * (1023 - len(text))).environments
    assert line.is_cut
    (line,) = environment(text + "a" * 900).environments
    assert not line.is_cut


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0..inf", (0, None)),
        ("0..8184", (0, 8184)),
        ("16516..inf", (16516, None)),
        ("1K", (1024, 1024)),
        ("64K..inf", (65536, None)),
        ("2M..1G", (2 << 20, 1 << 30)),
        ("0", (0, 0)),
        ("2049..4294967295", (2049, 4294967295)),
    ],
)
def test_size_ranges(text, expected):
    assert parse_range(text) == expected


@pytest.mark.parametrize("text", ["", "inf", "1..", "0-5", "1X"])
def test_what_is_no_size_range(text):
    with pytest.raises(ValueError, match="not a size range"):
        parse_range(text)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("tcp/lo", [("tcp", "lo", None, 1.0)]),
        ("cuda_ipc/cuda", [("cuda_ipc", "cuda", None, 1.0)]),
        ("rc_mlx5/mlx5_0:1/path0", [("rc_mlx5", "mlx5_0:1", "path0", 1.0)]),
        (
            "rc_mlx5/mlx5_0:1 50% on path0 and 50% on path1",
            [("rc_mlx5", "mlx5_0:1", "path0", 0.5), ("rc_mlx5", "mlx5_0:1", "path1", 0.5)],
        ),
        (
            "50% on rc_mlx5/mlx5_0:1/path0 and 50% on rc_mlx5/mlx5_1:1/path0",
            [("rc_mlx5", "mlx5_0:1", "path0", 0.5), ("rc_mlx5", "mlx5_1:1", "path0", 0.5)],
        ),
        (
            "30% on a/x, 40% on b/y and 30% on c/z",
            [("a", "x", None, 0.3), ("b", "y", None, 0.4), ("c", "z", None, 0.3)],
        ),
        ("tcp/lo 50% on and 50% on", [("tcp", "lo", None, 0.5), ("tcp", "lo", None, 0.5)]),
        ("", []),
        ("no resource", []),
    ],
)
def test_config_cells(config, expected):
    # Handmade from the grammar of UCX's ucp_proto_multi_query_config.
    assert parse_shares(config) == tuple(Share(*share) for share in expected)


@pytest.mark.parametrize("width", [0, 1, 4, 8, 10, 12, 20])
def test_a_config_cell_that_ucx_cut_never_names_half_a_transport(width):
    # Handmade: UCX keeps 127 characters of a cell.
    whole = f"25% on rc_mlx5/{'d' * width}:1/path0, " + ", ".join(
        f"25% on rc_mlx5/mlx5_bond_{n}:1/path0" for n in range(3)
    )
    shares = parse_shares(whole[:127])
    assert len(shares) >= 3
    assert {s.transport for s in shares} == {"rc_mlx5"}
