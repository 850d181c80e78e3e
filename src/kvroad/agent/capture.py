"""The byte counters at the edges of phases, as the kernel and the driver give them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from kvroad.evidence.counters import Check, early_check, parse_counter, parse_net_dev, parse_nvlink
from kvroad.plan import Claim

__all__ = ["Capture"]

_NIC_COUNTERS = ("port_rcv_data", "port_xmit_data")
_NIC_HARDWARE_COUNTERS = ("rcvd_pkts", "sent_pkts", "rx_read_requests", "out_of_sequence")


class Capture:
    """Reads all counters that a claim names and keeps one row per edge in a file."""

    def __init__(
        self, claim: Claim, path: Path, sysfs: Path = Path("/sys/class/infiniband")
    ) -> None:
        self._claim = claim
        self._path = path
        self._sysfs = sysfs

    def edge(self, name: str, cell: str) -> dict[str, Any]:
        """Read the counters, append the row and return it.

        The clock is read last at a start and first at an end, so that reading the
        counters is never counted as load.
        """
        is_end = name.endswith(":end")
        mono_ns = time.monotonic_ns() if is_end else 0
        unavailable: dict[str, str] = {}
        row: dict[str, Any] = {
            "edge": name,
            "cell": cell,
            "net": parse_net_dev(Path("/proc/net/dev").read_text()),
            "rdma": self._rdma(unavailable),
            "nvlink": self._nvlink(unavailable),
            "unavailable": unavailable,
        }
        row["mono_ns"] = mono_ns if is_end else time.monotonic_ns()
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def check(
        self, before: dict[str, Any], after: dict[str, Any], payload_bytes: int
    ) -> list[Check]:
        """Hold the counters of one phase against what the claim says of its payload."""
        return early_check(self._claim, before, after, payload_bytes)

    def _rdma(self, unavailable: dict[str, str]) -> dict[str, Any]:
        if not self._sysfs.is_dir():
            unavailable["rdma"] = f"no {self._sysfs}"
            return {}
        ports = {}
        for port in sorted(self._sysfs.glob("*/ports/*")):
            values: dict[str, Any] = {"link_layer": _text(port / "link_layer")}
            for name in _NIC_COUNTERS:
                values[name] = _counter(port / "counters" / name)
            for name in _NIC_HARDWARE_COUNTERS:
                values[name] = _counter(port / "hw_counters" / name)
            ports[f"{port.parent.parent.name}/{port.name}"] = values
        return ports

    def _nvlink(self, unavailable: dict[str, str]) -> dict[str, Any]:
        if not self._claim.gpus:
            unavailable["nvlink"] = "no GPU is named in the host's configuration"
            return {}
        if shutil.which("nvidia-smi") is None:
            unavailable["nvlink"] = "no nvidia-smi"
            return {}
        command = ["nvidia-smi", "nvlink", "-gt", "d"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            unavailable["nvlink"] = "nvidia-smi nvlink did not answer within 20 s"
            return {}
        if done.returncode != 0:
            unavailable["nvlink"] = " ".join((done.stdout + done.stderr).split())
            return {}
        return parse_nvlink(done.stdout)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _counter(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else parse_counter(text)
