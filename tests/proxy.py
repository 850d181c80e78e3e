"""A TCP proxy in front of a server: the network, and what can happen to it."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

CHUNK = 1 << 14


class Proxy:
    """Forwards connections; can cut them, go silent, be out of reach, or cut after some bytes."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._is_forwarding = threading.Event()
        self._is_forwarding.set()
        self.is_reachable = True
        self.is_slow = False
        self.bytes_to_client = 0
        self._is_time: Callable[[], bool] | None = None
        self._act: Callable[[], object] = self.cut
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        # Taken first: a client that was cut comes back at once, and its new connection stays.
        ended, self._open = self._open, []
        for end in ended:
            with contextlib.suppress(OSError):
                # A linger of 0 seconds makes close send RST.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()

    def when(self, is_time: Callable[[], bool], act: Callable[[], object]) -> None:
        """Do something once; asked for whenever something has gone to a client."""
        self._is_time, self._act = is_time, act

    def after(self, n_bytes: int, act: Callable[[], object]) -> None:
        """Do something once so many more bytes have gone to the client."""
        at = self.bytes_to_client + n_bytes
        self.when(lambda: self.bytes_to_client >= at, act)

    @property
    def is_silent(self) -> bool:
        return not self._is_forwarding.is_set()

    def go_silent(self) -> None:
        """Keep connections open and forward nothing, as a network that drops packets."""
        self._is_forwarding.clear()

    def come_back(self) -> None:
        """Forward again, and take connections again."""
        self.is_reachable = True
        self.is_slow = False
        self._is_forwarding.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self._is_forwarding.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.is_reachable:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pump, args=(source, sink, sink is client), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_to_client: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._is_forwarding.wait()
                if self.is_slow and is_to_client:
                    time.sleep(0.004)
                sink.sendall(chunk)
                if is_to_client:
                    self._count(len(chunk))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, n_bytes: int) -> None:
        self.bytes_to_client += n_bytes
        if self._is_time is not None and self._is_time():
            self._is_time = None
            self._act()
