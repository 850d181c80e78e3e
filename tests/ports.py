"""Ports for servers that must have one before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port that nobody listens on.

    Below those that the kernel deals out, or some connection may have it before the server has.
    """
    first_dealt = int(_RANGE.read_text().split()[0])
    while True:
        port = random.randrange(first_dealt // 2, first_dealt)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
