"""Whether a program answers at an address, for programs that know nothing of events."""

from __future__ import annotations

import errno
import http.client
import random
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["free_port", "is_taken", "status_of"]

_TIMEOUT_S = 2.0
# Below the ports that the kernel gives to outgoing connections, which could take one between
# choice and use; Dynamo 1.6 moreover reads DYN_SYSTEM_PORT as a signed 16-bit number.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_TRIES = 200


def free_port(address: str, taken: Iterable[int] = ()) -> int:
    """Return a port of the address that nothing listens on and that is not in ``taken``.

    Raises
    ------
    OSError
        When the address is not of this host, or no free port was found.
    """
    known = set(taken)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for number in random.sample(range(_FIRST_PORT, _LAST_PORT), _TRIES):
        with socket.socket(family) as probe:
            try:
                probe.bind((address, number))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        if number not in known:
            return number
    raise OSError(errno.EADDRINUSE, f"no free port from {_FIRST_PORT} to {_LAST_PORT}")


def is_taken(url: str) -> bool:
    """Return whether something accepts connections at the address already."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_S):
            return True
    except OSError:
        return False


def status_of(url: str) -> str:
    """Return the status of a GET as digits, or why there is none."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
