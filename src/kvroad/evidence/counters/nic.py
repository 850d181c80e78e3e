"""Ports of RDMA devices, whose words and packets the driver counts."""

from __future__ import annotations

from pathlib import Path

from kvroad.evidence.counter import WORD_BYTES, CounterKind, Counts, UncountedError

__all__ = ["NIC", "parse_counter", "read_ports"]

_COUNTERS = ("port_rcv_data", "port_xmit_data")
# The last two decide nothing; they are kept for whoever looks for the cause of a slow port.
_HARDWARE_COUNTERS = ("rcvd_pkts", "sent_pkts", "rx_read_requests", "out_of_sequence")


def read_ports(sysfs: Path = Path("/sys/class/infiniband")) -> Counts:
    """Return the counters of every port, ``mlx5_0/1`` (Linux ABI, sysfs-class-infiniband).

    Raises
    ------
    UncountedError
        When the host has no RDMA device.
    """
    if not sysfs.is_dir():
        raise UncountedError(f"no {sysfs}")
    ports = {}
    for port in sorted(sysfs.glob("*/ports/*")):
        values: dict[str, int | str | None] = {"link_layer": _text(port / "link_layer")}
        values |= {name: _counter(port / "counters" / name) for name in _COUNTERS}
        values |= {name: _counter(port / "hw_counters" / name) for name in _HARDWARE_COUNTERS}
        ports[f"{port.parent.parent.name}/{port.name}"] = values
    return ports


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _counter(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else parse_counter(text)


def parse_counter(text: str) -> int | None:
    """Read a counter file of sysfs; None for ``N/A`` and whatever is no whole number."""
    text = text.strip()
    return int(text) if text.isdigit() else None


NIC = CounterKind(
    name="nic",
    section="rdma",
    received="port_rcv_data",
    sent="port_xmit_data",
    unit_bytes=WORD_BYTES,
    read=lambda claim: read_ports(),
    devices=lambda claim: claim.rdma_devices,
    title="RDMA ports",
    packets=("rcvd_pkts", "sent_pkts"),
)
