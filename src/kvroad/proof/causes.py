"""The known causes, as a table: the line that each goes by, the sample that shows it, the fix."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CAUSES", "LOAD_DRIVERS", "Cause"]


@dataclass(frozen=True)
class Cause:
    """A known complaint: how its line reads, what is behind it, what to do.

    ``cause`` and ``fix`` may name the groups of the pattern in braces.

    Parameters
    ----------
    needle
        What every line that the pattern finds holds, so that other lines are passed over fast.
    sample
        File below tests/data that has the line, of a run that had this cause; empty: the line
        was never seen in a sample of ours, and the cause is only ever shown as possible.
    report
        Public thread in which others tell of it.
    source
        What its lines hold besides, of the texts that logs are searched for anyway; empty:
        logs are searched for the needle.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    sample: str = ""
    report: str = ""
    source: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether it is a possibility, and never the finding."""
        return not self.sample


# The name of a source file, as UCX and NIXL's C++ code begin each of their lines.
_UCX, _NIXL, _LIBIBVERBS = ".c:", ".cpp:", "libibverbs: "
LOAD_DRIVERS = "let the process load the system's libibverbs and its providers"

# The first that fits is the one that is told: what stopped everything comes first.
CAUSES = (
    Cause(
        "no control lane",
        "no peer failure handler",
        re.compile(r"no active messages transport to .*no peer failure handler"),
        "no transport in UCX_TLS can carry NIXL's control messages",
        "add a control lane such as tcp to UCX_TLS",
        "samples/ucx/ucx123_posix_cma_self_cannot_start.log",
        source=_UCX,
    ),
    Cause(
        "transport not available",
        "not available, please use",
        re.compile(
            r"transports? (?P<asked>(?:'[^']+',?)+) (?:is|are) not available, "
            r"please use one or more of: (?P<offered>.*)"
        ),
        "UCX has no {asked} on this host, only {offered}",
        "check device, driver and spelling, and that UCX is built with them (ucx_info -d)",
        "samples/ucx/nixl_read_rc_x_cuda_copy_tcp.txt",
        source=_UCX,
    ),
    Cause(
        "nothing usable",
        "no usable transports",
        re.compile(r"no usable transports/devices \(asked (?P<asked>.*?)(?: on .*)?\)"),
        "none of the asked transports {asked} is usable on this host",
        "compare UCX_TLS and UCX_NET_DEVICES with what ucx_info -d lists",
        "samples/raw/rc_x_cannot_start/prefill-0.log",
        source=_UCX,
    ),
    Cause(
        "cuda_copy missing",
        "detected as host by UCX",
        re.compile(r"VRAM memory is detected as host by UCX"),
        "UCX takes GPU memory for host memory",
        "add cuda_copy to UCX_TLS and see that UCX's CUDA modules load",
        report="ai-dynamo/nixl#1385",
        source=_NIXL,
    ),
    Cause(
        "driver missing",
        "couldn't load driver",
        re.compile(r"couldn't load driver '(?P<driver>[^']+)'"),
        "libibverbs has no driver {driver}, so that its devices stay unseen",
        LOAD_DRIVERS,
        "soft_roce/wheel_roce/decode-0.log",
        source=_LIBIBVERBS,
    ),
    Cause(
        "locked memory",
        "max locked memory",
        re.compile(r"Please set max locked memory \(ulimit -l\)"),
        "the limit of locked memory is too small for RDMA",
        "set ulimit -l unlimited for the processes; in a pod, add the capability IPC_LOCK",
        "samples/faults/locked_memory.log",
        "openucx/ucx#8746",
        source=_UCX,
    ),
    Cause(
        "RDMA memory",
        "Cannot allocate memory",
        re.compile(r"ibv_(?:create_cq|reg_mr|create_qp)\S*.*Cannot allocate memory\.?$"),
        "RDMA resources could not be had: locked memory, mappings or the NIC's contexts ran out",
        "set ulimit -l unlimited, raise vm.max_map_count, use fewer posting threads",
        report="openucx/ucx#6264",
        source=_UCX,
    ),
    Cause(
        "RDMA link or GID",
        "Transport retry count exceeded",
        re.compile(r"Transport retry count exceeded on (?P<port>\S+)"),
        "packets on {port} were not answered",
        "check link, GID index (UCX_IB_GID_INDEX), traffic class and flow control",
        report="openucx/ucx#6000",
        source=_UCX,
    ),
    Cause(
        "too many UARs",
        "alloc_uar",
        re.compile(r"mlx5dv_devx_alloc_uar\S* .*failed|alloc_uar.*[Ff]ailed"),
        "the NIC has no doorbell pages left: too many threads with workers of their own",
        "lower num_threads of the connector, or raise the NIC's number of UARs",
        report="vllm-project/vllm#27196",
        source=_UCX,
    ),
    Cause(
        "UCX and OFED differ",
        "mlx5dv_devx_obj_destroy",
        re.compile(r"mlx5dv_devx_obj_destroy.*Invalid argument"),
        "this UCX was built for another version of the NIC's user libraries",
        "use a UCX built against the OFED of the host, or the system's libibverbs",
        report="ai-dynamo/dynamo: disaggregated communication guide",
    ),
    Cause(
        "no NVLink",
        "no nvlinks detected",
        re.compile(r"cuda-ipc get zcopy disabled as no nvlinks detected"),
        "the GPUs have no active NVLink, so UCX does no remote reads over cuda_ipc",
        "push instead of pull (NixlPushConnector), or UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y",
        report="vllm-project/vllm#52607",
        source=_UCX,
    ),
    Cause(
        "expandable segments",
        "expandable_segments:True",
        re.compile(r"expandable_segments:True"),
        "the cache may lie in memory that cuda_ipc cannot share (CUDA's virtual memory API)",
        "unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF, and leave sleep mode off",
        report="ai-dynamo/nixl#1754",
    ),
    Cause(
        "telemetry vetoed",
        "telemetry is",
        re.compile(
            r"cannot return values when telemetry is not enabled"
            r"|NIXL telemetry is disabled; ignoring telemetry requested"
        ),
        "NIXL's telemetry is off",
        "unset NIXL_TELEMETRY_ENABLE: a false value there vetoes the agent's own request",
        "samples/faults/telemetry_vetoed.log",
        "ai-dynamo/nixl#2266",
    ),
    Cause(
        "unknown variable",
        "unused environment variable",
        re.compile(r"unused environment variables?: (?P<names>.*)"),
        "this UCX does not know {names}",
        "check the spelling and the version of UCX",
        "samples/faults/unknown_variable.log",
        source=_UCX,
    ),
    Cause(
        "transfers failed",
        "NIXL transfer failure",
        re.compile(r"NIXL transfer failure: (?P<kind>\w+)"),
        "transfers of the cache failed ({kind}); their requests may be answered all the same",
        "look at the UCX and NIXL lines before it, and set kv_load_failure_policy to fail",
        report="vllm-project/vllm#42895",
    ),
    Cause(
        "engines differ",
        "compatibility hash mismatch",
        re.compile(r"NIXL compatibility hash mismatch"),
        "prefill and decode differ in version, model, dtype or layout of the cache",
        "start both with the same vLLM, model, --block-size, --kv-cache-dtype and backend",
        report="vllm-project/vllm#29503",
    ),
    Cause(
        "wrong engine",
        "engine ID mismatch",
        re.compile(r"Remote NIXL agent engine ID mismatch"),
        "the side channel leads to another engine than the one that holds the cache",
        "give each engine on a host its own VLLM_NIXL_SIDE_CHANNEL_PORT, and the right host",
        report="vllm-project/vllm#27083",
    ),
    Cause(
        "lease expired",
        "expired",
        re.compile(r"Releasing expired KV blocks|They may have expired"),
        "prefill gave up waiting and freed the cache; decode may have read other bytes",
        "find out why pulls are late (slow road, queue), and raise kv_lease_duration",
        report="vllm-project/aibrix#1772",
    ),
    Cause(
        "port of metrics taken",
        "CivetServer",
        re.compile(r"null context when constructing CivetServer"),
        "NIXL's Prometheus exporter found its port taken by another rank",
        "set NIXL_TELEMETRY_PROMETHEUS_PORT for each rank, or NIXL_TELEMETRY_EXPORTER=NOP",
        report="ai-dynamo/nixl#1838",
        source=_NIXL,
    ),
    Cause(
        "peer gone",
        "NIXL_ERR_REMOTE_DISCONNECT",
        re.compile(r"NIXL_ERR_REMOTE_DISCONNECT"),
        "the other engine went away or was started again",
        "start both engines afresh; why it went stands at the end of its own log",
        "samples/faults/peer_gone.log",
        "ai-dynamo/nixl#1983",
    ),
)
