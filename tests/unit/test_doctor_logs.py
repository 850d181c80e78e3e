"""`kvroad doctor logs=…`: the road of every sample, the causes, and logs of any length."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import REPOSITORY, kvroad

from kvroad.evidence import scan
from kvroad.evidence.kv_transfer import TransferSum, parse_transfer_line
from kvroad.proof import engine_logs as logs
from kvroad.proof.causes import CAUSES
from kvroad.proof.deductions import examine_log
from kvroad.proof.engine_logs import read_log

DATA = REPOSITORY / "tests" / "data"
SAMPLES = DATA / "samples"

# File below tests/data: road, operation, memory.
ROADS = {
    "samples/serving/dynamo161_shm_decode.log": ("cma", "read", "host"),
    "samples/serving/dynamo161_shm_prefill.log": ("none", "", ""),
    "samples/serving/dynamo161_tcp_decode.log": ("tcp", "read", "host"),
    "samples/serving/dynamo161_tcp_prefill.log": ("none", "", ""),
    "samples/serving/vllm023_nvlink_decode.log": ("cuda_ipc", "read", "cuda"),
    "samples/serving/vllm023_nvlink_prefill.log": ("none", "", ""),
    "samples/serving/vllm023_tcp_decode.log": ("tcp", "read", "cuda"),
    "samples/ucx/nixl_read_1desc.txt": ("tcp", "read", "host"),
    "samples/ucx/nixl_read_rc_x_cuda_copy_tcp.txt": ("tcp", "read", "host"),
    "samples/ucx/ucx121_nixl131_cma_protoinfo_y.log": ("cma", "read", "host"),
    "samples/ucx/ucx121_nixl131_tcp_protoinfo_used.log": ("tcp", "read", "host"),
    "samples/ucx/ucx123_nixl151_cma_protoinfo_y.log": ("cma", "read", "host"),
    "samples/ucx/ucx123_nixl151_tcp_protoinfo_used.log": ("tcp", "read", "host"),
    "samples/ucx/ucx123_posix_cma_self_cannot_start.log": ("none", "", ""),
    "samples/ucx/ucx123_typo_rcx_falls_to_tcp.log": ("tcp", "read", "host"),
    "samples/raw/nvlink_read/decode-0.log": ("cuda_ipc", "read", "cuda"),
    "samples/raw/nvlink_push_sgl/prefill-0.log": ("cuda_ipc", "write", "cuda"),
    "samples/raw/nvlink_push_sgl/decode-0.log": ("none", "", ""),
    "samples/raw/nvlink_falls_to_tcp/decode-0.log": ("tcp", "read", "cuda"),
    "samples/raw/shm_push/prefill-0.log": ("cma", "write", "host"),
    "samples/raw/shm_push_sgl/prefill-0.log": ("cma (software emulation)", "write", "host"),
    "samples/raw/tcp_push_sgl/prefill-0.log": ("tcp", "write", "host"),
    "samples/faults/telemetry_vetoed.log": ("tcp", "read", "host"),
    "samples/faults/unknown_variable.log": ("tcp", "read", "host"),
    "samples/faults/locked_memory.log": ("none", "", ""),
    "samples/faults/peer_gone.log": ("tcp", "read", "host"),
    "samples/faults/separate_pid_namespaces.log": ("tcp", "read", "host"),
    "samples/faults/separate_pid_namespaces_no_ucx_tls.log": ("tcp", "read", "host"),
    "soft_roce/roce/decode-0.log": ("rc_verbs", "read", "host"),
    "soft_roce/wheel_roce/decode-0.log": ("tcp", "read", "host"),
    "soft_roce/shm/decode-0.log": ("cma", "read", "host"),
}
# Lines as public reports have them, for causes that no sample of ours shows.
REPORTED = {
    "cuda_copy missing": "E0101 00:00:00.0 1 ucx_utils.cpp:585] memReg: VRAM memory is detected as "
    "host by UCX. UCX is likely not configured with CUDA/ROCm support.",
    "RDMA memory": "[1.1] [h:1:0]  ib_md.c:289  UCX  ERROR ibv_reg_mr(address=0x7f0000000000, "
    "length=4194304, access=0xf) failed: Cannot allocate memory",
    "RDMA link or GID": "[h:1:0:1] ib_mlx5_log.c:139  Transport retry count exceeded on "
    "mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
    "too many UARs": "[1.1] [h:1:0] ib.c:1 UCX  ERROR mlx5dv_devx_alloc_uar() failed: no memory",
    "UCX and OFED differ": "mlx5dv_devx_obj_destroy(QP) failed: Invalid argument",
    "no NVLink": "[1.1] [h:1:0] cuda_ipc_iface.c:253  UCX  DEBUG cuda-ipc get zcopy disabled as no "
    "nvlinks detected",
    "expandable segments": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "transfers failed": "ERROR [worker.py:1] NIXL transfer failure: transfer_failed | Context: {}",
    "engines differ": "RuntimeError: NIXL compatibility hash mismatch. Local: a, Remote: b",
    "wrong engine": "RuntimeError: Remote NIXL agent engine ID mismatch. Expected a, received b",
    "lease expired": "WARNING [scheduler.py:1] Releasing expired KV blocks for request 1",
    "port of metrics taken": "E nixl.cpp:1] null context when constructing CivetServer",
}


@pytest.mark.parametrize("name", ROADS)
def test_the_road_of_every_sample(name: str) -> None:
    reading = read_log(DATA / name)
    road, row, kind = reading.road()
    assert road == ROADS[name][0]
    if kind is None:
        assert (row, ROADS[name][1]) == (None, "")
    else:
        assert (kind.table.operation, kind.table.local_memory) == ROADS[name][1:]
        # As grep and editors count: a lone carriage return ends no line.
        lines = (DATA / name).read_bytes().decode(errors="replace").split("\n")
        assert row is not None
        assert lines[row.line - 1].strip() == row.text.strip()


def test_no_sample_with_tables_is_left_out() -> None:
    logs_with_tables = {
        str(path.relative_to(DATA))
        for folder in (SAMPLES / "serving", SAMPLES / "ucx", SAMPLES / "faults")
        for path in folder.iterdir()
        if path.suffix != ".prom"  # metrics: no log
    }
    assert logs_with_tables <= set(ROADS)


@pytest.mark.parametrize("cause", [c for c in CAUSES if c.sample], ids=lambda c: c.name)
def test_each_cause_is_found_in_its_sample(cause) -> None:
    reading = read_log(DATA / cause.sample)
    named = [
        one for one in reading.causes if one.fix == cause.fix or cause.name == "driver missing"
    ]
    assert named, [str(one) for one in reading.causes]
    assert not named[0].is_possible


@pytest.mark.parametrize("cause", [c for c in CAUSES if not c.sample], ids=lambda c: c.name)
def test_a_cause_without_a_sample_is_possible_only(cause, tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    log.write_text(f"a line before\n{REPORTED[cause.name]}\n")
    (found,) = read_log(log).causes
    assert found.is_possible
    assert (found.where, found.report) == (f"{log}:2", cause.report)
    assert str(found).startswith("possible cause: ")
    assert cause.report, "what no sample shows, somebody must have told of"


def test_every_cause_is_in_the_docs() -> None:
    page = (REPOSITORY / "docs" / "doctor.md").read_text()
    for cause in CAUSES:
        assert f"| {cause.name} |" in page


def test_the_rate_and_what_makes_it_slow() -> None:
    done = kvroad("doctor", "logs=tests/data/samples/serving/vllm023_tcp_decode.log")
    assert done.status == 0, "it was asked for by UCX_TLS, and no transport is claimed"
    assert "SEEN: the cache is read over tcp, software emulation over tcp/lo" in done.out
    assert "cause: UCX_TLS allows TCP alone" in done.out
    assert "0.0792 GB/s within a transfer" in done.out
    assert done.out.splitlines()[-1] == "road of the cache: tcp"


@pytest.mark.parametrize(
    ("name", "claimed", "status"),
    [
        ("serving/vllm023_nvlink_decode.log", "nvlink", 0),
        ("serving/vllm023_nvlink_decode.log", "roce", 1),
        ("serving/vllm023_tcp_decode.log", "roce", 1),
        ("serving/vllm023_tcp_decode.log", "tcp", 0),
        ("raw/shm_push_sgl/prefill-0.log", "shm", 1),  # messages, answered by the peer's CPU
        ("ucx/nixl_read_rc_x_cuda_copy_tcp.txt", "", 1),  # UCX_TLS asked for more
        ("faults/telemetry_vetoed.log", "tcp", 0),
        ("faults/unknown_variable.log", "", 0),
        ("faults/separate_pid_namespaces_no_ucx_tls.log", "", 1),
        ("serving/dynamo161_tcp_prefill.log", "", 1),  # shows no road
        ("../soft_roce/roce/decode-0.log", "roce", 0),
        ("../soft_roce/wheel_roce/decode-0.log", "roce", 1),
    ],
)
def test_the_status_is_whether_the_road_is_the_one_claimed(
    name: str, claimed: str, status: int
) -> None:
    words = [f"transport={claimed}"] if claimed else []
    done = kvroad("doctor", f"logs=tests/data/samples/{name}", *words, "--json")
    assert done.status == status
    (log,) = done.data["logs"]
    assert log["status"] in ("as claimed", "not as meant", "shown", "no road shown")
    assert (log["status"] in ("as claimed", "shown")) == (status == 0)


def test_lists_folders_and_words_that_cannot_be_meant(tmp_path: Path) -> None:
    both = "logs=[tests/data/samples/ucx/nixl_read_1desc.txt,tests/data/samples/serving]"
    assert len(kvroad("doctor", both, "--json").data["logs"]) == 8
    odd = tmp_path / "a, b.log"
    odd.write_text("nothing\n")
    done = kvroad("doctor", f'logs="{odd}"')
    assert (done.status, "no line of UCX is in this log" in done.out) == (1, True)
    (tmp_path / "empty").mkdir()
    for word, said in (
        ("logs=", "names no file"),
        ("logs=nope.log", "nope.log is not there"),
        (f"logs={tmp_path / 'empty'}", "a folder without a log"),
    ):
        done = kvroad("doctor", word)
        assert (done.status, done.out) == (2, "")
        assert said in done.err
    done = kvroad("doctor", "logs=x.log", "host=local")
    assert (done.status, "only transport= is taken" in done.err) == (2, True)
    done = kvroad("doctor", "logs=x.log", "transport=rose")
    assert (done.status, "did you mean 'roce'?" in done.err) == (2, True)


def test_logs_as_they_were_rotated_away(tmp_path: Path) -> None:
    text = (SAMPLES / "serving/vllm023_nvlink_decode.log").read_bytes()
    (tmp_path / "decode.log.gz").write_bytes(gzip.compress(text))
    done = kvroad("doctor", f"logs={tmp_path}", "transport=nvlink", "--json")
    assert (done.status, done.data["logs"][0]["road"]) == (0, "cuda_ipc")
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(text)[:2000])
    done = kvroad("doctor", f"logs={tmp_path / 'cut.log.gz'}")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "cut.log.gz: cannot be read: " in done.err
    (tmp_path / "no.gz").write_text("plain")
    assert "Not a gzipped file" in kvroad("doctor", f"logs={tmp_path / 'no.gz'}").err


def test_an_endless_line_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LINE_BYTES", 1_000)
    monkeypatch.setattr(scan, "BLOCK_BYTES", 300)
    log = tmp_path / "decode.log"
    table = (SAMPLES / "ucx/nixl_read_1desc.txt").read_text()
    log.write_text(f"{'x' * 5_000}\n{'y' * 999}\n{'z' * 1_000}\n{table}")
    reading = read_log(log)
    assert reading.n_lines == 3 + table.count("\n")
    row = reading.road()[1]
    assert row is not None
    assert log.read_text().split("\n")[row.line - 1] == row.text


def test_a_fifo_is_read_as_it_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.log"
    os.mkfifo(pipe)
    table = (SAMPLES / "ucx/nixl_read_1desc.txt").read_bytes()
    # Opening a FIFO waits for its other end.
    writer = threading.Thread(target=pipe.write_bytes, args=(table,))
    writer.start()
    assert read_log(pipe).road()[0] == "tcp"
    writer.join()


def test_secrets_in_logs_stay_there(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    text = (SAMPLES / "serving/vllm023_tcp_decode.log").read_text(errors="replace")
    log.write_text(text.replace("UCX_RCACHE", "UCX_API_KEY=abcdefgh UCX_RCACHE"))
    for words in ((), ("--json",)):
        assert "abcdefgh" not in kvroad("doctor", f"logs={log}", *words).out


def lines_of(n_tables: int) -> Iterator[str]:
    """Tables of reads that one engine might print for ever, with other lines between them."""
    table = (SAMPLES / "ucx/nixl_read_1desc.txt").read_text().splitlines(keepends=True)
    for number in range(n_tables):
        yield from table
        yield f"(EngineCore pid=1) INFO request {number} was served, in a line like others\n"
        yield (
            "INFO KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=10.0, "
            "P90 xfer time (ms)=11, Avg post time (ms)=1.0, P90 post time (ms)=2, "
            "Avg MB per transfer=8.0, Throughput (MB/s)=800.0, Avg number of descriptors=64.0\n"
        )


class Fed(io.RawIOBase):
    """A file that is made as it is read."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines

    def read(self, size: int = -1) -> bytes:
        return "".join(itertools.islice(self.lines, 100)).encode()


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_DRAIN_LINES", 2_000)
    peaks = []
    for n_tables in (800, 3_200):
        tracemalloc.start()
        reading = logs._read(Fed(lines_of(n_tables)), "long.log")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(reading.tables) == 1
        assert reading.tables[0].n_tables == n_tables
        assert reading.transfers.transfers == 2 * n_tables
        assert reading.transfers.descriptor_bytes == 131072
    assert peaks[1] < 1.5 * peaks[0], peaks


def test_metrics_lines_of_both_versions() -> None:
    old = (
        "KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)=2, "
        "P90 xfer time (ms)=2, Avg post time (ms)=1, P90 post time (ms)=1, "
        "Avg MB per transfer=70.0, Throughput (MB/s)=1, Avg number of descriptors=56.0"
    )
    line = parse_transfer_line(old)
    assert line is not None
    assert (line.transfers, line.transfer_bytes, line.failed) == (3, 70 * 2**20, None)
    new = parse_transfer_line(f"{old}, Num failed transfers=3, Num KV expired reqs=1")
    assert new is not None
    assert (new.failed, new.expired) == (3, 1)
    assert parse_transfer_line("KV Transfer metrics: nothing") is None
    sums = TransferSum()
    sums.add(new)
    assert sums.gb_per_s == pytest.approx(70 * 2**20 / 2e-3 / 1e9)


def test_failed_transfers_are_never_passed(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    text = (SAMPLES / "serving/dynamo161_shm_decode.log").read_text(errors="replace")
    log.write_text(text.replace("Num failed transfers=0", "Num failed transfers=2", 1))
    done = kvroad("doctor", f"logs={log}", "transport=shm")
    assert (done.status, "; 2 transfers failed or expired" in done.out) == (1, True)


def test_what_ucx_tls_asked_for_and_did_not_get(tmp_path: Path) -> None:
    text = (SAMPLES / "serving/vllm023_tcp_decode.log").read_text(errors="replace")
    asked = text.replace("UCX_TLS=cuda_copy,tcp", "UCX_TLS=cuda_copy,cuda_ipc,tcp")
    free = text.replace("UCX_TLS=cuda_copy,tcp ", "UCX_TLS=all ")
    for name, content, said, status in (
        ("asked", asked, "UCX_TLS allows cuda_ipc too, and UCX did not use it", "not as meant"),
        ("free", free, "UCX was free to choose and found nothing faster than TCP", "shown"),
    ):
        log = tmp_path / f"{name}.log"
        log.write_text(content)
        finding = examine_log(read_log(log))
        assert finding.status == status
        assert any(said in cause.cause for cause in finding.causes)


@pytest.mark.parametrize(
    ("roads", "told"),
    [
        (["rc_mlx5", "rc_verbs"], True),
        (["cuda_ipc"], False),  # what it went by
        (["cma"], True),
    ],
)
def test_a_road_that_ucx_tls_shuts_out(roads: list[str], told: bool) -> None:
    reading = read_log(SAMPLES / "serving/vllm023_nvlink_decode.log")
    finding = examine_log(reading, roads)
    causes = [c for c in finding.causes if "UCX_TLS allows cuda_ipc, tcp and so none" in c.cause]
    assert bool(causes) == told
    assert all(c.quote.endswith("UCX_RCACHE_MAX_UNRELEASED=1024") for c in causes)


@pytest.mark.parametrize(
    ("tls", "roads", "told"),
    [
        ("rc,cuda_copy,tcp", ["rc_verbs"], False),
        ("rc_x,tcp", ["rc_verbs"], True),
        ("ib,tcp", ["rc_mlx5"], False),
        ("shm,tcp", ["cma"], False),
        ("^rc", ["rc_mlx5"], False),
    ],
)
def test_aliases_of_ucx_tls(tls: str, roads: list[str], told: bool, tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    text = (SAMPLES / "raw/roce_falls_to_tcp/decode-0.log").read_text()
    log.write_text(text.replace("UCX_TLS=rc,cuda_copy,tcp", f"UCX_TLS={tls}"))
    finding = examine_log(read_log(log), roads)
    assert finding.status == "not as meant"
    assert any("and so none of" in cause.cause for cause in finding.causes) == told


def test_cuda_ipc_in_the_lanes_of_an_emulated_read(tmp_path: Path) -> None:
    text = (SAMPLES / "serving/vllm023_nvlink_decode.log").read_text(errors="replace")
    log = tmp_path / "decode.log"
    assert "| cuda_ipc/cuda" in text
    lines = [
        line.replace("zero-copy", "software emulation").replace("| cuda_ipc/cuda", "| tcp/lo")
        if "| cuda_ipc/cuda" in line and "zero-copy" in line
        else line
        for line in text.splitlines()
    ]
    log.write_text("\n".join(lines))
    finding = examine_log(read_log(log), ["cuda_ipc"])
    assert (finding.road, finding.status) == ("tcp", "not as meant")
    hint = [cause for cause in finding.causes if "cuda_ipc is connected" in cause.cause]
    assert hint[0].is_possible
    assert "am(tcp/lo tcp/eth0 cuda_ipc/cuda)" in hint[0].quote


@pytest.mark.parametrize(
    "name", ["separate_pid_namespaces.log", "separate_pid_namespaces_no_ucx_tls.log"]
)
def test_separate_pid_namespaces(name: str) -> None:
    done = kvroad("doctor", f"logs=tests/data/samples/faults/{name}", "transport=shm", "--json")
    assert done.status == 1
    cause = done.data["logs"][0]["causes"][0]
    assert "separate PID namespaces" in cause["cause"]
    assert not cause["is_possible"]
    assert "am(tcp/lo)  ka(tcp/lo)" in cause["quote"]


def test_one_pid_namespace_is_not_taken_for_two() -> None:
    for name in ("raw/roce_falls_to_tcp/decode-0.log", "raw/tcp_four_threads/decode-0.log"):
        finding = examine_log(read_log(SAMPLES / name))
        assert finding.road == "tcp"
        assert not any("PID" in cause.cause for cause in finding.causes)
