"""NVLinks of GPUs, whose KiB the driver counts."""

from __future__ import annotations

import re
import shutil
import subprocess

from kvroad.evidence.counter import CounterKind, Counts, UncountedError
from kvroad.plan import Claim

__all__ = ["NVLINK", "parse_nvlink"]

_GPU = re.compile(r"GPU (\d+):")
_LINK = re.compile(r"Link (\d+): *(.*)")
_LINK_COUNTER = re.compile(r"\b(Tx|Rx)\d*: *(\d+|N/A)")


def parse_nvlink(text: str) -> dict[str, dict[str, int | None]]:
    """Read ``nvidia-smi nvlink -gt d``: GPU index to the sums ``rx_kib`` and ``tx_kib``.

    ``Link 0: Data Tx: 5 KiB`` and ``Link 0: Rx0: 5 KiB, Tx0: 6 KiB`` are known forms. A sum
    is None where a link says ``N/A`` or none is counted.
    """
    counters: dict[str, dict[str, int | None]] = {}
    unknown: set[tuple[str, str]] = set()
    gpu = ""
    for line in text.splitlines():
        if header := _GPU.match(line.strip()):
            gpu = header[1]
            counters[gpu] = {"rx_kib": None, "tx_kib": None}
        elif gpu and (link := _LINK.match(line.strip())):
            for side, value in _LINK_COUNTER.findall(link[2]):
                key = f"{side.lower()}_kib"
                if value == "N/A":
                    unknown.add((gpu, key))
                else:
                    counters[gpu][key] = (counters[gpu][key] or 0) + int(value)
    for gpu, key in unknown:
        counters[gpu][key] = None
    return counters


def _read(claim: Claim) -> Counts:
    if not claim.gpus:
        raise UncountedError("no GPU is named in the host's configuration")
    if shutil.which("nvidia-smi") is None:
        raise UncountedError("no nvidia-smi")
    command = ["nvidia-smi", "nvlink", "-gt", "d"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        raise UncountedError("nvidia-smi nvlink did not answer within 20 s") from None
    if done.returncode != 0:
        raise UncountedError(" ".join((done.stdout + done.stderr).split()))
    return parse_nvlink(done.stdout)


def _own_traffic(claim: Claim) -> str:
    """Say that the ranks of a serving engine exchange activations at every layer."""
    if claim.serving is not None and claim.serving.engine_ranks > 1:
        return f"engines of {claim.serving.engine_ranks} ranks use NVLink themselves"
    return ""


NVLINK = CounterKind(
    name="nvlink",
    section="nvlink",
    received="rx_kib",
    sent="tx_kib",
    unit_bytes=1024,
    read=_read,
    devices=lambda claim: [str(gpu) for gpu in claim.gpus],
    title="NVLinks",
    device_title="GPU {}",
    own_traffic=_own_traffic,
)
