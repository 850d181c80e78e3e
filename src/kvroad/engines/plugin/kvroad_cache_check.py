"""Plug-in of vLLM: each engine writes down digests of the KV blocks of one request.

vLLM loads it in every process through the entry point group ``vllm.general_plugins``. It wraps
methods of vLLM's NIXL connector: the block ids of the first request that prefill hands over are
noted, and each worker digests these blocks when they were read, on decode those that it pulled
them into. No fault in here may disturb the engine: it is written down as why nothing was checked.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER_VARIABLE", "digests", "register"]

FOLDER_VARIABLE = "KVROAD_CACHE_CHECK"
_BLOCKS = "prefill.blocks.json"
_lock = threading.Lock()


def register() -> None:
    """Wrap vLLM's connector, where the launch asks for the check."""
    if not os.environ.get(FOLDER_VARIABLE):
        return
    with _lock:
        try:
            factory = importlib.import_module(
                "vllm.distributed.kv_transfer.kv_connector.factory"
            ).KVConnectorFactory
            connector = factory.get_connector_class_by_name("NixlConnector")
            if not getattr(connector, "_kvroad_is_wrapped", False):
                wrap(connector)
        except Exception as error:  # noqa: BLE001 (the engine comes first)
            _note("plugin", {"error": f"{type(error).__name__}: {error}"})


def wrap(connector: Any) -> None:
    """Wrap the methods of a connector class that tell of caches, blocks and transfers."""
    _after(connector, "register_kv_caches", lambda self, _, caches: _keep(self, caches))
    _after(
        connector,
        "register_cross_layers_kv_cache",
        lambda self, _, cache, *__: _keep(self, {"all layers": cache}),
    )
    for name in ("request_finished", "request_finished_all_groups"):
        _after(connector, name, _handed_over)
    _before(connector, "start_load_kv", _to_receive)
    _after(connector, "get_finished", lambda self, done, *_: _finished(self, *done))
    _after(
        connector,
        "get_transfer_results",
        lambda self, done, *_: _finished(self, done.finished_sending, done.finished_recving),
    )
    connector._kvroad_is_wrapped = True


def _after(cls: Any, name: str, hook: Callable[..., None]) -> None:
    method = getattr(cls, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        _safely(hook, self, result, *args, *kwargs.values())
        return result

    setattr(cls, name, wrapped)


def _before(cls: Any, name: str, hook: Callable[..., None]) -> None:
    method = getattr(cls, name)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        _safely(hook, self)
        return method(self, *args, **kwargs)

    setattr(cls, name, wrapped)


def _safely(hook: Callable[..., None], self: Any, *args: Any) -> None:
    if getattr(self, "_kvroad_is_done", False):
        return
    try:
        hook(self, *args)
    except Exception as error:  # noqa: BLE001 (the engine comes first)
        self._kvroad_is_done = True
        _note(_name(self), {"error": f"{type(error).__name__}: {error}"})


def _keep(self: Any, caches: Mapping[str, Any]) -> None:
    self._kvroad_caches = dict(caches)


def _handed_over(self: Any, result: tuple[bool, Any], *_: Any) -> None:
    """On prefill's scheduler: note where the blocks of the first request lie."""
    params = result[1] or {}
    blocks = params.get("remote_block_ids")
    if blocks and _name(self).startswith("prefill"):
        _write(_BLOCKS, [list(ids) for ids in _by_group(blocks)])
        self._kvroad_is_done = True


def _to_receive(self: Any) -> None:
    """On decode's worker: keep the block ids of the requests that are about to be pulled."""
    waiting = self.__dict__.setdefault("_kvroad_waiting", {})
    metadata = getattr(self, "_connector_metadata", None)
    for request, meta in getattr(metadata, "reqs_to_recv", {}).items():
        waiting[request] = [list(ids) for ids in _by_group(meta.local_block_ids)]


def _finished(self: Any, sent: Iterable[str] | None, received: Iterable[str] | None) -> None:
    waiting = self.__dict__.get("_kvroad_waiting", {})
    for request in received or ():
        if request in waiting:
            _digest(self, waiting[request])
            return
    if any(True for _ in sent or ()):
        _digest(self, json.loads((_folder() / _BLOCKS).read_text()))


def _digest(self: Any, blocks: Sequence[Sequence[int]]) -> None:
    self._kvroad_is_done = True
    config = self.kv_cache_config
    groups = [list(group.layer_names) for group in config.kv_cache_groups]
    found = digests(self._kvroad_caches, groups, blocks, config.num_blocks)
    _note(_name(self), {"blocks": [len(ids) for ids in blocks], "digests": found})


def digests(
    caches: Mapping[str, Any],
    groups: Sequence[Sequence[str]],
    blocks: Sequence[Sequence[int]],
    num_blocks: int,
) -> dict[str, str]:
    """Return the SHA-256 of the named blocks of each cache tensor, in the blocks' order.

    Parameters
    ----------
    caches
        Layer to tensor; its first dimension that is ``num_blocks``, or a multiple of it where
        a kernel's blocks are smaller, counts blocks.
    groups
        Layers that share block ids; a cache in no group is one of all layers, and has the
        blocks of the only group.
    blocks
        Block ids of each group.

    Raises
    ------
    ValueError
        When a tensor has no such dimension, or it is not clear which blocks it holds.
    """
    torch: Any = importlib.import_module("torch")
    group_of = {layer: number for number, layers in enumerate(groups) for layer in layers}
    found = {}
    for layer in sorted(caches):
        if layer not in group_of and len(blocks) != 1:
            raise ValueError(f"{layer}: {len(blocks)} groups of blocks for one cache")
        ids = blocks[group_of.get(layer, 0)]
        tensor = caches[layer]
        size, place = next(
            ((n, d) for d, n in enumerate(tensor.shape) if n >= num_blocks and n % num_blocks == 0),
            (0, 0),
        )
        if not size:
            raise ValueError(f"{layer}: no dimension of {tuple(tensor.shape)} counts blocks")
        per_block = size // num_blocks
        kernel_ids = [i * per_block + k for i in ids for k in range(per_block)]
        index = torch.tensor(kernel_ids, dtype=torch.long, device=tensor.device)
        rows = tensor.movedim(place, 0).index_select(0, index).contiguous().cpu()
        found[layer] = hashlib.sha256(rows.view(torch.uint8).numpy().tobytes()).hexdigest()
    return found


def _by_group(blocks: Any) -> Sequence[Sequence[int]]:
    """Return block ids by group: versions without groups have one flat list."""
    return [blocks] if blocks and isinstance(blocks[0], int) else blocks


def _name(self: Any) -> str:
    config = getattr(self, "kv_transfer_config", None) or getattr(
        getattr(self, "_vllm_config", None), "kv_transfer_config", None
    )
    side = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(
        str(getattr(config, "kv_role", "")), "engine"
    )
    worker = getattr(self, "connector_worker", None)
    return f"{side}.{getattr(worker, 'tp_rank', 0) if worker else 'scheduler'}"


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def _note(name: str, row: Mapping[str, Any]) -> None:
    try:
        _write(f"{name}.json", row)
    except OSError:
        return


def _write(name: str, value: Any) -> None:
    """Write a file whole: its reader waits for it."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    passing = folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
    passing.write_text(json.dumps(value))
    passing.replace(folder / name)
