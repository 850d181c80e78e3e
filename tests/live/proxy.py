"""A TCP proxy in front of an sshd: the network, and what can happen to it."""

import contextlib
import socket
import struct
import threading
import time

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
        self._cut_at: int | None = None
        self._pause_s = 0.0
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

    def cut_after(self, n_bytes: int, pause_s: float = 0.0) -> None:
        """Reset every connection once so many more bytes have gone to the client, and a pause."""
        self._cut_at = self.bytes_to_client + n_bytes
        self._pause_s = pause_s

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
                if is_to_client and self._is_cut(len(chunk)):
                    return
                if self.is_slow and is_to_client:
                    time.sleep(0.004)
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_cut(self, n_bytes: int) -> bool:
        self.bytes_to_client += n_bytes
        if self._cut_at is None or self.bytes_to_client < self._cut_at:
            return False
        self._cut_at = None
        time.sleep(self._pause_s)
        self.cut()
        return True
