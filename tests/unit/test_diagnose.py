from pathlib import Path

import pytest

from kvroad.evidence.nixl import parse_pulls
from kvroad.evidence.ucx import parse_lines
from kvroad.proof.causes import CAUSES
from kvroad.proof.diagnose import diagnose_complaints, diagnose_pulls, diagnose_row

SAMPLES = Path(__file__).parents[1] / "data" / "samples"


def read(name: str):
    with (SAMPLES / name).open(errors="replace", newline="\n") as lines:
        return parse_lines(lines, Path(name).name)


def say(*lines: str):
    return diagnose_complaints([parse_lines(lines, "decode-0.log")])


def test_transports_that_ucx_does_not_have():
    (found,) = diagnose_complaints([read("ucx/nixl_read_rc_x_cuda_copy_tcp.txt")])
    assert found.cause == (
        "UCX has no 'rc_x','cuda_copy' on this host, only cma, mm, posix, self, shm, sm, sysv, tcp"
    )
    assert found.where == "nixl_read_rc_x_cuda_copy_tcp.txt:1"
    assert found.quote.startswith("[1795993314.188937] [vm:27274:0]")
    assert str(found).endswith(found.fix)


def test_a_single_transport_that_is_a_typo():
    (found,) = diagnose_complaints([read("ucx/ucx123_typo_rcx_falls_to_tcp.log")])
    assert "UCX has no 'rcx'" in found.cause


def test_no_control_lane():
    found = diagnose_complaints([read("ucx/ucx123_posix_cma_self_cannot_start.log")])
    assert found[0].fix == "add a control lane such as tcp to UCX_TLS"
    assert found[0].where == "ucx123_posix_cma_self_cannot_start.log:3"


def test_nothing_usable_comes_after_what_is_missing():
    found = diagnose_complaints([read("raw/rc_x_cannot_start/prefill-0.log")])
    assert [f.where for f in found] == ["prefill-0.log:2", "prefill-0.log:3"]
    assert "none of the asked transports rc_x,cuda_copy is usable" in found[1].cause


def test_telemetry_that_is_off():
    # As NIXL 1.5.1 prints it with NIXL_TELEMETRY_ENABLE=n.
    (found,) = say(
        "E1130 01:12:57.964019   10240 nixl_agent.cpp:1269] getXferTelemetry: "
        "cannot return values when telemetry is not enabled.\n",
        "nixl_cu13._bindings.nixlNoTelemetryError: NIXL_ERR_NO_TELEMETRY\n",
    )
    assert "NIXL_TELEMETRY_ENABLE" in found.fix
    assert found.where == "decode-0.log:1"


def test_a_variable_that_ucx_does_not_know():
    # As UCX 1.23.0 prints it.
    (found,) = say(
        "[1796000570.182906] [vm:5987 :0]          parser.c:2578 UCX  WARN  "
        "unused environment variable: UCX_BOGUS\n",
        "[1796000570.182906] [vm:5987 :0]          parser.c:2578 UCX  WARN  "
        "(set UCX_WARN_UNUSED_ENV_VARS=n to suppress this warning)\n",
    )
    assert found.cause == "this UCX does not know UCX_BOGUS"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (  # ai-dynamo/nixl pull request 1385
            "E0101 00:00:00.000000  1 ucx_utils.cpp:585] memReg: VRAM memory is detected as host "
            "by UCX. UCX is likely not configured with CUDA/ROCm support.\n",
            "UCX takes GPU memory for host memory",
        ),
        (  # openucx/ucx issue 8684
            "[1.1] [h:1:0]  ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot "
            "allocate memory. Please set max locked memory (ulimit -l) to 'unlimited' "
            "(current: 64 kbytes)\n",
            "the limit of locked memory is too small for RDMA",
        ),
        (  # openucx/ucx issue 6000
            "[h:1:0:1] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE "
            "(synd 0x15 vend 0x81 hw_synd 0/0)\n",
            "packets on mlx5_0:1/RoCE were not answered",
        ),
        (
            "libibverbs: Warning: couldn't load driver 'librxe-rdmav34.so': "
            "librxe-rdmav34.so: cannot open shared object file\n",
            "libibverbs has no driver librxe-rdmav34.so, so that its devices stay unseen",
        ),
    ],
)
def test_lines_of_public_reports(line, cause):
    assert [f.cause for f in say(line)] == [cause]


@pytest.mark.parametrize(
    ("device", "drivers", "cause"),
    [
        ("'rxe0:1'", ["efa", "rxe"], "no driver librxe-rdmav34.so, so that rxe0:1 stays unseen"),
        ("'lo9','mlx5_0:1'", ["mlx4", "mlx5"], "no driver libmlx5-rdmav34.so, so that mlx5_0:1"),
        ("'mlx5_0:1'", ["mlx4"], "UCX has no 'rc_v' on this host"),
    ],
)
def test_of_all_drivers_that_are_missing_the_one_of_the_asked_device_is_told(
    device, drivers, cause
):
    missing = [
        f"libibverbs: Warning: couldn't load driver 'lib{d}-rdmav34.so': x\n" for d in drivers
    ]
    found = say(
        *missing,
        f"[1.1] [h:1 :0]  ucp_context.c:1 UCX  WARN  network device {device} is not available, "
        "please use one or more of: 'lo'(tcp)\n",
        "[1.1] [h:1 :0]  ucp_context.c:1 UCX  WARN  transport 'rc_v' is not available, "
        "please use one or more of: tcp\n",
    )
    assert cause in found[0].cause


def test_clean_logs_have_no_cause():
    logs = [read("raw/shm_four_threads/decode-0.log"), read("serving/vllm023_tcp_decode.log")]
    assert diagnose_complaints(logs) == []


def test_every_cause_fills_its_own_text():
    for cause in CAUSES:
        names = dict.fromkeys(cause.pattern.groupindex, "x")
        assert cause.cause.format(**names)
        assert cause.fix.format(**names)


def test_secrets_stay_out():
    (found,) = say(
        "[1.1] [h:1:0]  parser.c:1 UCX  WARN  unused environment variable: UCX_API_KEY=abcdef\n"
    )
    assert "abcdef" not in str(found) + found.quote


def test_cuda_ipc_in_the_lanes_of_an_emulated_read():
    log = read("serving/vllm023_nvlink_decode.log")
    tcp = read("serving/vllm023_tcp_decode.log")
    emulated = next(t for t in tcp.tables if t.operation == "read").rows[0]
    found = diagnose_row(log, emulated, "VRAM")
    assert found is not None
    assert found.where == "vllm023_nvlink_decode.log:297"
    assert "am(tcp/lo tcp/eth0 cuda_ipc/cuda)" in found.quote
    assert diagnose_row(tcp, emulated, "VRAM") is None
    assert diagnose_row(log, emulated, "DRAM") is None
    direct = next(t for t in log.tables if t.operation == "read").rows[0]
    assert diagnose_row(log, direct, "VRAM") is None


def test_merged_descriptors():
    with (SAMPLES / "raw/shm_four_threads/pulls-0.jsonl").open() as file:
        lines = file.readlines()
    assert diagnose_pulls([parse_pulls(lines, "p")]) is None
    merged = lines[2].replace('"descriptors_moved": 1760', '"descriptors_moved": 7')
    found = diagnose_pulls([parse_pulls([*lines[:2], merged], "p")])
    assert found is not None
    assert (found.cause, found.where) == ("NIXL merged 1760 descriptors into 7", "p:3")
