"""The two-step request of disaggregated vLLM without Dynamo: prefill, then decode.

Prefill computes the prompt and one token and answers with where its KV blocks are
(``kv_transfer_params``); decode gets the same request with them, pulls and streams.
"""

from __future__ import annotations

import http.client
import json
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

__all__ = ["serve"]

_TIMEOUT_S = 900.0
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    decode: str = ""
    prefill: str | None = None


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection closes with its answer."""

    server: _Server

    def do_GET(self) -> None:
        """Pass on what decode says of its models and its health."""
        self._pass_on("GET", self.server.decode, None)

    def do_POST(self) -> None:
        """Let prefill compute the prompt, then pass decode's stream on."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/v1/completions" and self.server.prefill is not None:
            try:
                raw = self._prefilled(json.loads(raw), self.server.prefill)
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                self.send_error(502, f"prefill: {' '.join(str(error).split())[:300]}")
                return
        self._pass_on("POST", self.server.decode, raw)

    def _prefilled(self, body: dict[str, object], prefill: str) -> bytes:
        self._request_id = str(uuid.uuid4())
        first = {k: v for k, v in body.items() if k not in ("stream_options", "min_tokens")}
        first |= {"max_tokens": 1, "stream": False, "kv_transfer_params": _REMOTE_DECODE}
        connection, response = self._send("POST", prefill, json.dumps(first).encode())
        try:
            text = response.read()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {text.decode(errors='replace')}")
            answer = json.loads(text)
        finally:
            connection.close()
        return json.dumps({**body, "kv_transfer_params": answer["kv_transfer_params"]}).encode()

    def _send(
        self, method: str, base: str, body: bytes | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(base)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=_TIMEOUT_S
        )
        headers = {"Content-Type": "application/json"}
        if hasattr(self, "_request_id"):
            headers["X-Request-Id"] = self._request_id
        connection.request(method, self.path, body, headers)
        return connection, connection.getresponse()

    def _pass_on(self, method: str, base: str, body: bytes | None) -> None:
        try:
            connection, response = self._send(method, base, body)
        except (OSError, http.client.HTTPException) as error:
            self.send_error(502, f"decode: {error}")
            return
        try:
            self.send_response(response.status)
            kind = response.headers.get("Content-Type", "application/json")
            self.send_header("Content-Type", kind)
            self.end_headers()
            # One event of the stream at a time, as soon as it is there.
            while chunk := response.read1(1 << 16):
                self.wfile.write(chunk)
                self.wfile.flush()
        except OSError:
            return  # The client has gone.
        finally:
            connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def serve(host: str, port: int, decode: str, prefill: str | None) -> None:
    """Serve until the process is ended."""
    server = _Server((host, port), _Handler)
    server.decode, server.prefill = decode, prefill
    server.serve_forever()
