"""The side channel between the two halves of a pair: JSON lines over TCP.

It carries what vLLM's side channel carries (agent metadata, addresses) and what a test of
the road needs besides: a barrier over ranks, and checks of memory on the other side.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypedDict

__all__ = ["Client", "PeerAnswer", "PeerRequest", "Server", "SideChannelError"]


class _PeerRequest(TypedDict):
    op: str


class PeerRequest(_PeerRequest, total=False):
    """``hello``; ``poison`` of blocks; ``matches`` of local and remote blocks; ``barrier``.

    ``n`` is the number of ranks that meet at the barrier of this ``name``.
    """

    blocks: list[int]
    local: list[int]
    remote: list[int]
    every_word: bool
    name: str
    n: int
    timeout_s: float


class PeerAnswer(TypedDict, total=False):
    """Of ``hello``: NIXL's metadata in base64, the pool's addresses and GPU; of ``matches``: ok."""

    metadata: str
    bases: list[int]
    device: int
    ok: bool
    error: str


Handler = Callable[[PeerRequest], PeerAnswer]


class SideChannelError(Exception):
    """The other half of the pair did not answer, or answered with an error."""


class Server:
    """Answers requests of the posting half; one thread per connection.

    ``port`` is the port that it listens on, also where any free one was asked for with 0.
    """

    def __init__(self, host: str, port: int, handler: Handler) -> None:
        self._handler = handler
        self._barriers: dict[str, threading.Barrier] = {}
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as stream:
            for line in stream:
                request = json.loads(line)
                try:
                    answer = self._answer(request)
                except (ValueError, RuntimeError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(answer) + "\n")
                stream.flush()

    def _answer(self, request: PeerRequest) -> PeerAnswer:
        if request["op"] == "barrier":
            self._barrier(request["name"], request["n"]).wait(request["timeout_s"])
            return {}
        return self._handler(request)

    def _barrier(self, name: str, n: int) -> threading.Barrier:
        with self._lock:
            return self._barriers.setdefault(name, threading.Barrier(n))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class Client:
    """The posting half's end.

    Raises
    ------
    SideChannelError
        When nobody listens within ``timeout_s`` seconds.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._socket = socket.create_connection((host, port), timeout=5.0)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SideChannelError(f"{host}:{port}: {error}") from error
                time.sleep(0.05)
        self._socket.settimeout(timeout_s)
        self._stream = self._socket.makefile("rw")

    def ask(self, op: str, **fields: Any) -> PeerAnswer:
        """Send one request and return the answer."""
        try:
            self._stream.write(json.dumps({"op": op, **fields}) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError as error:
            raise SideChannelError(f"{op}: {error}") from error
        if not line:
            raise SideChannelError(f"{op}: the other half closed the connection")
        answer: PeerAnswer = json.loads(line)
        if "error" in answer:
            raise SideChannelError(f"{op}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()
