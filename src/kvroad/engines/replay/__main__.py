"""One half of a prefill/decode pair; started by the host agent, driven over stdin."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import ReplayConfig
from .binding import NoNixl, make_agent, nixl_errors, versions
from .memory import CudaError, Pool, PoolShape, Words, make_pool
from .pulls import PhaseRequest, Poster
from .side_channel import Client, PeerAnswer, PeerRequest, Server, SideChannelError

__all__ = ["main"]

_CHANNEL_TIMEOUT_S = 300.0


class Half:
    """Pool, NIXL agent and events of one half; the posting half also drives the pulls."""

    def __init__(self, role: str, rank: int, config: ReplayConfig, events_fd: int) -> None:
        self.role, self.rank, self.config = role, rank, config
        self.name = f"{role}-{rank}"
        self._events = os.fdopen(events_fd, "w", buffering=1)
        self._lock = threading.Lock()
        self.shape = PoolShape(
            config["n_tensors"],
            config["pool_blocks"],
            config["halves"],
            config["descriptor_bytes"],
            config["seed"] * 1_000_003 + rank,
            config["gap_bytes"],
        )
        self.agent = make_agent(self.name, config["num_threads"], config["progress_delay_us"])
        gpus = config["prefill_gpus"] if role == "prefill" else config["decode_gpus"]
        device = gpus[rank] if config["memory"] == "VRAM" else 0
        self.pool: Pool = make_pool(self.shape, config["memory"], device)
        if role == "prefill":
            self.pool.fill_pattern()
        size = self.shape.tensor_bytes
        regions = [(base, size, self.pool.device, "") for base in self.pool.bases]
        self._registered = self.agent.register_memory(regions, self.pool.segment)

    def send(self, event: str, **fields: Any) -> None:
        """Send one event to the host agent."""
        self._events.write(json.dumps({"event": event, **fields}) + "\n")

    def descriptors(self, bases: list[int], device: int) -> Any:
        """Return NIXL's form of all descriptors of a pool."""
        return self.agent.get_xfer_descs(self.shape.descriptors(bases, device), self.pool.segment)

    def handle(self, request: PeerRequest) -> PeerAnswer:
        """PeerAnswer the posting half."""
        op = request["op"]
        # Requests come in on threads of the side channel.
        self.pool.use()
        if op == "hello":
            metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
            return {
                "metadata": metadata,
                "bases": self.pool.bases,
                "device": self.pool.device,
            }
        if op == "poison":
            self.pool.poison(np.array(request["blocks"], dtype=np.uint64))
            return {}
        if op == "matches":
            local = np.array(request["local"], dtype=np.uint64)
            remote = np.array(request["remote"], dtype=np.uint64)
            return {"ok": self.pool.matches(local, remote, every_word=request["every_word"])}
        raise ValueError(f"unknown request {op!r}")

    def close(self) -> None:
        """Give memory and agent back; UCX prints its use counts here."""
        self.agent.deregister_memory(self._registered)
        del self.agent


def serve(half: Half, host: str, port: int) -> None:
    """Be the passive half until standard input says otherwise."""
    server = Server(host, port, half.handle)
    half.send("ready", ports={f"side-{half.rank}": server.port}, **versions())
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        half.agent.get_new_notifs()
    server.close()
    half.close()


def post(half: Half, host: str, ports: list[int]) -> None:
    """Be the posting half: connect, prepare the lists, run phases as they are asked for."""
    peer = Client(host, ports[half.rank], _CHANNEL_TIMEOUT_S)
    first = peer if half.rank == 0 else Client(host, ports[0], _CHANNEL_TIMEOUT_S)
    hello = peer.ask("hello")
    remote_name = half.agent.add_remote_agent(base64.b64decode(hello["metadata"]))
    local_list = half.agent.prep_xfer_dlist(
        "NIXL_INIT_AGENT", half.descriptors(half.pool.bases, half.pool.device)
    )
    remote_list = half.agent.prep_xfer_dlist(
        remote_name, half.descriptors(hello["bases"], hello["device"])
    )
    poster = _poster(half, peer, first, local_list, remote_list)
    half.send("ready", **versions())
    with open(f"pulls-{half.rank}.jsonl", "a", encoding="utf-8") as rows_file:
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            request = PhaseRequest(**json.loads(line))
            rows = poster.run(request)
            error = _check_all(half, peer, poster)
            for row in rows:
                if error is not None:
                    row["verified"] = False
                rows_file.write(json.dumps(row) + "\n")
            rows_file.flush()
            half.send("phase_done", phase=request.phase, error=error)
    local_list.release()
    remote_list.release()
    half.agent.remove_remote_agent(remote_name)
    half.close()
    peer.close()


def _poster(half: Half, peer: Client, first: Client, local_list: Any, remote_list: Any) -> Poster:
    config = half.config
    is_read = config["operation"] == "read"

    def before_pull(local: Words, remote: Words) -> None:
        if is_read:
            half.pool.poison(local)
        else:
            peer.ask("poison", blocks=remote.tolist())

    def after_pull(local: Words, remote: Words) -> bool:
        return _matches(half, peer, local, remote, every_word=False)

    def barrier(name: str) -> None:
        if config["ranks"] > 1:
            first.ask("barrier", name=name, n=config["ranks"], timeout_s=_CHANNEL_TIMEOUT_S)

    last = [0.0]

    def progress(done: int) -> None:
        if time.monotonic() - last[0] > 0.5:
            last[0] = time.monotonic()
            half.send("progress", done=done)

    return Poster(
        agent=half.agent,
        shape=half.shape,
        remote_shape=half.shape,
        operation=config["operation"].upper(),
        local_list=local_list,
        remote_list=remote_list,
        rank=half.rank,
        block_order=config["block_order"],
        poll_interval_s=config["poll_interval_us"] / 1e6,
        before_pull=before_pull,
        after_pull=after_pull,
        barrier=barrier,
        progress=progress,
    )


def _matches(half: Half, peer: Client, local: Words, remote: Words, *, every_word: bool) -> bool:
    """Compare what was written with what the pattern says: here for a read, there for a write."""
    if half.config["operation"] == "read":
        return half.pool.matches(local, remote, every_word=every_word)
    answer = peer.ask(
        "matches", local=remote.tolist(), remote=local.tolist(), every_word=every_word
    )
    return bool(answer["ok"])


def _check_all(half: Half, peer: Client, poster: Poster) -> str | None:
    """Compare every word of one pull of the phase, chosen by the seed."""
    assert poster.finished is not None
    local, remote = poster.finished
    if _matches(half, peer, local, remote, every_word=True):
        return None
    return "the bytes that arrived are not those that prefill wrote"


def main() -> int:
    """Start one half; every failure is one event and one line, with exit status 1."""
    parser = argparse.ArgumentParser(prog="replay")
    parser.add_argument("role", choices=["prefill", "decode"])
    parser.add_argument("rank", type=int)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--ports", required=True, help="side channel ports by rank, with commas")
    arguments = parser.parse_args()
    config: ReplayConfig = json.loads(arguments.config.read_text())
    ports = [int(p) for p in arguments.ports.split(",")]
    poster_role = "decode" if config["operation"] == "read" else "prefill"
    try:
        expected: tuple[type[Exception], ...] = (CudaError, SideChannelError, MemoryError, OSError)
        expected += nixl_errors()
    except NoNixl as error:
        return _report(error, arguments.events)
    try:
        half = Half(arguments.role, arguments.rank, config, arguments.events)
        if arguments.role == poster_role:
            post(half, arguments.host, ports)
        else:
            serve(half, arguments.host, ports[arguments.rank])
    except expected as error:
        return _report(error, arguments.events)
    return 0


def _report(error: Exception, events_fd: int) -> int:
    text = f"{type(error).__name__}: {error}"
    with os.fdopen(os.dup(events_fd), "w") as events:
        events.write(json.dumps({"event": "error", "text": text}) + "\n")
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
