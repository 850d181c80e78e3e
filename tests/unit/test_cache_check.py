"""The plug-in's digests on a stand-in for vLLM's connector, and how the driver compares them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvroad.engines.driver.cache import check_cache
from kvroad.engines.driver.client import Failed
from kvroad.engines.plugin import kvroad_cache_check as plugin

BLOCKS, HEADS = 6, 2


class Tensor:
    """As much of a tensor as the plug-in asks for, over an array."""

    device = "cpu"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape = array.shape

    def movedim(self, source: int, to: int) -> Tensor:
        return Tensor(np.moveaxis(self.array, source, to))

    def index_select(self, dim: int, index: list[int]) -> Tensor:
        return Tensor(np.take(self.array, index, axis=dim))

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array))

    def cpu(self) -> Tensor:
        return self

    def view(self, kind: Any) -> Tensor:
        return Tensor(self.array.view(kind))

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


@pytest.fixture(autouse=True)
def stand_in_for_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = ModuleType("torch")
    torch.tensor = lambda ids, dtype, device: ids  # type: ignore[attr-defined]
    torch.long, torch.uint8 = np.int64, np.uint8  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv(plugin.FOLDER_VARIABLE, str(tmp_path))


def cache(seed: int, blocks: int = BLOCKS) -> Tensor:
    return Tensor(np.random.default_rng(seed).random((2, blocks, HEADS, 4), dtype=np.float32))


class Connector:
    """vLLM's connector, in what the plug-in wraps."""

    def __init__(self, role: str, is_worker: bool) -> None:
        self.kv_transfer_config = SimpleNamespace(kv_role=role)
        self.connector_worker = SimpleNamespace(tp_rank=0) if is_worker else None
        self.kv_cache_config = SimpleNamespace(
            num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace(layer_names=["a", "b"])]
        )
        self._connector_metadata = SimpleNamespace(reqs_to_recv={})
        self.done: tuple[set[str], set[str]] = (set(), set())

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        self.given = kv_caches

    def request_finished(self, request: str, block_ids: list[int]) -> tuple[bool, Any]:
        return True, {"remote_block_ids": (block_ids,)}

    def start_load_kv(self, context: object) -> None:
        self.loaded = context

    def get_finished(self, finished: set[str]) -> tuple[set[str], set[str]]:
        return self.done


@pytest.fixture
def connector() -> type[Connector]:
    wrapped = type("Wrapped", (Connector,), {})
    plugin.wrap(wrapped)
    return wrapped


def move(connector: type[Connector], source: Tensor, target: Tensor) -> Connector:
    """Let prefill hand over blocks 4 and 1, and decode pull them into 0 and 5; return decode."""
    scheduler = connector("kv_producer", is_worker=False)
    assert scheduler.request_finished("r", [4, 1]) == (True, {"remote_block_ids": ([4, 1],)})
    prefill, decode = (connector(f"kv_{r}", is_worker=True) for r in ("producer", "consumer"))
    prefill.register_kv_caches({"a": source, "b": source})
    decode.register_kv_caches(kv_caches={"a": target, "b": target})
    decode._connector_metadata.reqs_to_recv = {"d": SimpleNamespace(local_block_ids=([0, 5],))}
    decode.start_load_kv("context")
    assert decode.loaded == "context"
    prefill.done, decode.done = ({"r"}, set()), (set(), {"d"})
    assert decode.get_finished(set()) == (set(), {"d"})
    assert prefill.get_finished(set()) == ({"r"}, set())
    return decode


def test_equal_blocks_are_found_equal(connector: type[Connector], tmp_path: Path) -> None:
    source, target = cache(1), cache(2)
    target.array[:, [0, 5]] = source.array[:, [4, 1]]
    move(connector, source, target)
    assert check_cache(tmp_path, 1) == "equal: 2 blocks in 2 caches"


def test_one_wrong_value_fails_the_launch(connector: type[Connector], tmp_path: Path) -> None:
    source, target = cache(1), cache(2)
    target.array[:, [0, 5]] = source.array[:, [4, 1]]
    target.array[1, 5, 1, 3] += 1
    move(connector, source, target)
    with pytest.raises(Failed, match="differs from prefill's blocks in 2 of 2 caches of rank 0"):
        check_cache(tmp_path, 1)


def test_only_the_first_request_is_digested(connector: type[Connector], tmp_path: Path) -> None:
    source, target = cache(1), cache(2)
    target.array[:, [0, 5]] = source.array[:, [4, 1]]
    decode = move(connector, source, target)
    first = (tmp_path / "decode.0.json").read_text()
    target.array[:, 3] += 1
    decode._connector_metadata.reqs_to_recv = {"e": SimpleNamespace(local_block_ids=([3],))}
    decode.start_load_kv("context")
    decode.done = (set(), {"e"})
    decode.get_finished(set())
    assert (tmp_path / "decode.0.json").read_text() == first


def test_blocks_of_a_kernel_may_be_smaller() -> None:
    fine = cache(3, blocks=2 * BLOCKS)
    found = plugin.digests({"a": fine}, [["a"]], [[2]], BLOCKS)
    two = np.ascontiguousarray(np.moveaxis(fine.array, 1, 0)[[4, 5]])
    assert found == {"a": hashlib.sha256(two.tobytes()).hexdigest()}


def test_a_fault_is_written_down_and_disturbs_nothing(
    connector: type[Connector], tmp_path: Path
) -> None:
    odd = Tensor(np.zeros((3, 5), dtype=np.float32))
    move(connector, odd, odd)
    told = check_cache(tmp_path, 1)
    assert told.startswith("not checked: ")
    assert "no dimension of (3, 5) counts blocks" in told


def test_silence_is_no_proof(tmp_path: Path) -> None:
    assert check_cache(tmp_path, 1, wait_s=0) == "not checked: no digests of prefill"
    (tmp_path / "plugin.json").write_text(json.dumps({"error": "ImportError: moved"}))
    assert check_cache(tmp_path, 1, wait_s=0) == "not checked: plugin: ImportError: moved"
    for side, blocks in (("prefill", [2]), ("decode", [1])):
        row = {"blocks": blocks, "digests": {"a": "0"}}
        (tmp_path / f"{side}.0.json").write_text(json.dumps(row))
    assert check_cache(tmp_path, 1) == "not checked: prefill has [2] blocks, decode [1]"
