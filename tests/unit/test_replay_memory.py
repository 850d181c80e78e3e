"""The host pool: where descriptors lie, and that a single wrong word is seen."""

import ctypes

import numpy as np
import pytest

from kvroad.engines.replay import memory
from kvroad.engines.replay.memory import POISON, PoolShape, _runs, make_pool

BLOCKS = PoolShape(n_tensors=2, n_blocks=6, halves=2, descriptor_bytes=64, salt=11)
REGIONS = PoolShape(1, 6, 1, 400_000, salt=11, gap_bytes=4096)


def filled(shape: PoolShape):
    pool = make_pool(shape, "DRAM", 0)
    pool.fill_pattern()
    return pool


def words_at(address: int, n: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint64 * n).from_address(address))


def pull(source, target, local: np.ndarray, remote: np.ndarray) -> None:
    """Copy as a transfer does: descriptor by descriptor, by address."""
    shape = source.shape
    from_ = source.shape.descriptors(source.bases, 0)[shape.indices(remote)]
    to = shape.descriptors(target.bases, 0)[shape.indices(local)]
    for (a, size, _), (b, _, _) in zip(from_, to, strict=True):
        words_at(int(b), int(size) // 8)[:] = words_at(int(a), int(size) // 8)


@pytest.mark.parametrize("shape", [BLOCKS, REGIONS])
def test_what_the_descriptors_name_carries_the_pattern(shape: PoolShape) -> None:
    source, target = filled(shape), make_pool(shape, "DRAM", 0)
    local = np.array([0, 3, 1], dtype=np.uint64)
    remote = np.array([5, 2, 4], dtype=np.uint64)
    assert not target.matches(local, remote, every_word=False)
    pull(source, target, local, remote)
    assert target.matches(local, remote, every_word=True)
    assert not target.matches(local, remote[::-1].copy(), every_word=False)
    target.poison(local[1:2])
    assert not target.matches(local, remote, every_word=False)


@pytest.mark.parametrize("shape", [BLOCKS, REGIONS])
def test_one_wrong_word_is_seen_when_every_word_is_compared(shape: PoolShape) -> None:
    source, target = filled(shape), make_pool(shape, "DRAM", 0)
    ids = np.arange(3, dtype=np.uint64)
    pull(source, target, ids, ids)
    first = shape.descriptors(target.bases, 0)[shape.indices(ids)][-1]
    words_at(int(first[0]), shape.words)[3] += 1
    assert target.matches(ids, ids, every_word=False)
    assert not target.matches(ids, ids, every_word=True)


def test_large_regions_are_spoiled_and_probed_inside() -> None:
    assert REGIONS.probes.tolist() == [0, 16384, 32768, 49152, 49999]
    pool = filled(REGIONS)
    pool.poison(np.array([2], dtype=np.uint64))
    start = int(REGIONS.descriptors(pool.bases, 0)[2][0])
    held = words_at(start, REGIONS.words)
    assert np.flatnonzero(held == POISON).tolist() == REGIONS.probes.tolist()


def test_spoiling_leaves_other_blocks_alone() -> None:
    pool = filled(BLOCKS)
    ids = np.arange(6, dtype=np.uint64)
    pool.poison(np.array([4], dtype=np.uint64))
    assert pool.matches(ids[:4], ids[:4], every_word=True)
    assert not pool.matches(ids, ids, every_word=False)


def test_block_ids_are_cut_into_runs() -> None:
    runs = _runs(np.array([3, 4, 5, 9, 2, 3], dtype=np.uint64))
    assert [run.tolist() for run in runs] == [[3, 4, 5], [9], [2, 3]]


def test_regions_do_not_touch() -> None:
    rows = REGIONS.descriptors([0], 0).astype(np.int64)
    assert set(np.diff(rows[:, 0]) - rows[:-1, 1]) == {4096}
    assert REGIONS.tensor_bytes == 6 * (400_000 + 4096)


def test_a_gap_of_half_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 8"):
        PoolShape(1, 1, 1, 64, salt=0, gap_bytes=4)


class HostDriver:
    """The calls of the CUDA driver that a pool makes, on host memory: for its arithmetic only."""

    def __init__(self, _: str) -> None:
        self._kept: list[object] = []

    def __getattr__(self, name: str):
        if name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"):
            return lambda *_: 0
        if name == "cuCtxSynchronize":
            return lambda: 0
        raise AttributeError(name)

    def cuMemAlloc_v2(self, address, size) -> int:
        self._kept.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(self._kept[-1])
        return 0

    def cuMemsetD8_v2(self, address, value, size) -> int:
        ctypes.memset(address.value, value.value, size.value)
        return 0

    def cuMemcpyHtoD_v2(self, target, source, size) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, target, source, size) -> int:
        return self.cuMemcpyHtoD_v2(target, source, size)

    def cuMemcpy2D_v2(self, reference) -> int:
        copy = reference._obj
        source = copy.src_host or copy.src_device
        target = copy.dst_host or copy.dst_device
        for row in range(copy.height):
            ctypes.memmove(target + row * copy.dst_pitch, source + row * copy.src_pitch, copy.width)
        return 0


@pytest.mark.parametrize("max_pitch", [2**31 - 1, 32])
@pytest.mark.parametrize("shape", [BLOCKS, REGIONS])
def test_the_gpu_pool_lays_out_and_compares_like_the_host_pool(
    monkeypatch, shape: PoolShape, max_pitch: int
) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", HostDriver)
    monkeypatch.setattr(memory, "_MAX_PITCH", max_pitch)
    host, source, target = filled(shape), make_pool(shape, "VRAM", 0), make_pool(shape, "VRAM", 1)
    source.fill_pattern()
    for a, b in zip(host.bases, source.bases, strict=True):
        gap = shape.stride_words - shape.words
        rows = [
            words_at(x, shape.tensor_bytes // 8).reshape(-1, shape.stride_words) for x in (a, b)
        ]
        assert np.array_equal(rows[0][:, : shape.words], rows[1][:, : shape.words])
        assert (rows[1][:, shape.words :] == POISON).all() or gap == 0
    local = np.array([0, 3, 1], dtype=np.uint64)
    remote = np.array([5, 2, 4], dtype=np.uint64)
    assert not target.matches(local, remote, every_word=False)
    pull(source, target, local, remote)
    assert target.matches(local, remote, every_word=True)
    first = shape.descriptors(target.bases, 1)[shape.indices(local)][-1]
    words_at(int(first[0]), shape.words)[3] += 1
    assert target.matches(local, remote, every_word=False)
    assert not target.matches(local, remote, every_word=True)
    target.poison(local)
    assert not target.matches(local, remote, every_word=False)
    start = int(shape.descriptors(target.bases, 1)[0][0])
    spoiled = np.flatnonzero(words_at(start, shape.words) == POISON)
    assert spoiled.tolist() == shape.probes.tolist()
