"""The KV pools: one tensor per layer, keys and values of a block side by side.

Memory of tensor t: block 0 keys, block 0 values, block 1 keys, ... With two halves the
stride of a region is twice its descriptor, so that NIXL cannot merge neighbours, as in
vLLM 0.23's blocks-first layout. With one half a gap behind each descriptor does the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["CudaError", "Pool", "PoolShape", "make_pool"]

Words = np.ndarray[Any, np.dtype[np.uint64]]
WORD_BYTES = 8
POISON = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
# Large regions are spoiled and compared at every so many bytes, as often as blocks are.
_PROBE_BYTES = 131_072
# The pattern is written in pieces, so that it takes little memory beside the pool.
_PIECE_BYTES = 1 << 26


class CudaError(Exception):
    """A call of the CUDA driver library failed."""


class PoolShape:
    """Tensors, blocks, halves and words of a pool.

    Parameters
    ----------
    salt
        Added to every word of the pattern, so that two launches never share content.
    gap_bytes
        Unused bytes behind each descriptor.
    """

    def __init__(
        self,
        n_tensors: int,
        n_blocks: int,
        halves: int,
        descriptor_bytes: int,
        salt: int,
        gap_bytes: int = 0,
    ) -> None:
        if descriptor_bytes % WORD_BYTES or gap_bytes % WORD_BYTES:
            sizes = f"{descriptor_bytes} bytes and a gap of {gap_bytes}"
            raise ValueError(f"descriptor of {sizes}: both must be multiples of 8")
        self.n_tensors = n_tensors
        self.n_blocks = n_blocks
        self.halves = halves
        self.descriptor_bytes = descriptor_bytes
        self.stride_bytes = descriptor_bytes + gap_bytes
        self.words = descriptor_bytes // WORD_BYTES
        self.stride_words = self.stride_bytes // WORD_BYTES
        self.salt = salt
        places = np.arange(0, self.words, _PROBE_BYTES // WORD_BYTES)
        self.probes = np.union1d(places, [self.words - 1]).astype(np.uint64)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return self.n_blocks * self.halves * self.stride_bytes

    def first_word(self, tensor: int, blocks: Words) -> Words:
        """Return the pattern's first word per block and half, shape (blocks, halves)."""
        places = (np.uint64(tensor * self.n_blocks) + blocks)[:, None] * np.uint64(self.halves)
        halves = np.arange(self.halves, dtype=np.uint64)[None, :]
        return (places + halves) * np.uint64(self.words) + np.uint64(self.salt)

    def descriptors(self, bases: Sequence[int], device: int) -> Words:
        """Return (address, bytes, device) of every descriptor, region by region.

        Region ``tensor * halves + half`` holds the descriptors of all blocks of that half.
        """
        stride = self.halves * self.stride_bytes
        blocks = np.arange(self.n_blocks, dtype=np.uint64) * np.uint64(stride)
        rows = [
            np.uint64(base + half * self.stride_bytes) + blocks
            for base in bases
            for half in range(self.halves)
        ]
        addresses = np.concatenate(rows)
        out = np.empty((addresses.size, 3), dtype=np.uint64)
        out[:, 0], out[:, 1], out[:, 2] = addresses, self.descriptor_bytes, device
        return out

    def indices(self, blocks: Words) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the descriptor indices of a pull's blocks, region by region."""
        regions = np.arange(self.n_tensors * self.halves, dtype=np.int64)[:, None]
        return (regions * self.n_blocks + blocks.astype(np.int64)).ravel().astype(np.int32)

    def pieces(self, tensor: int) -> Iterator[tuple[slice, Words]]:
        """Yield runs of blocks with their pattern, shape (blocks, halves, words)."""
        words = np.arange(self.words, dtype=np.uint64)
        step = max(1, _PIECE_BYTES // (self.halves * self.descriptor_bytes))
        for start in range(0, self.n_blocks, step):
            run = slice(start, min(start + step, self.n_blocks))
            blocks = np.arange(run.start, run.stop, dtype=np.uint64)
            yield run, self.first_word(tensor, blocks)[..., None] + words


class Pool(Protocol):
    """One side's memory."""

    shape: PoolShape
    segment: str
    device: int
    bases: list[int]

    def use(self) -> None:
        """Make the pool usable in the calling thread."""

    def fill_pattern(self) -> None:
        """Write the pattern everywhere."""

    def poison(self, blocks: Words) -> None:
        """Spoil the probed words of the blocks' descriptors, first and last among them."""

    def matches(self, local: Words, remote: Words, *, every_word: bool) -> bool:
        """Whether blocks ``local`` hold what the pattern has at blocks ``remote``."""


class _Checks:
    """Comparison with the pattern, over ``probed`` and ``read_block`` of the subclass."""

    shape: PoolShape

    def probed(self, tensor: int, blocks: Words) -> Words:
        """Return the probed words of blocks, shape (blocks, halves, probes)."""
        raise NotImplementedError

    def read_block(self, tensor: int, block: int) -> Words:
        """Return one block's words, shape (halves, words)."""
        raise NotImplementedError

    def matches(self, local: Words, remote: Words, *, every_word: bool) -> bool:
        shape = self.shape
        words = np.arange(shape.words, dtype=np.uint64)
        for tensor in range(shape.n_tensors):
            first = shape.first_word(tensor, remote)[..., None]
            if not np.array_equal(self.probed(tensor, local), first + shape.probes):
                return False
            if every_word and not all(
                np.array_equal(self.read_block(tensor, int(block)), first[i] + words)
                for i, block in enumerate(local)
            ):
                return False
        return True


class _HostPool(_Checks):
    segment = "DRAM"
    device = 0

    def __init__(self, shape: PoolShape) -> None:
        self.shape = shape
        dims = (shape.n_blocks, shape.halves, shape.stride_words)
        # Touched once here: page faults of the first pull would count as its time.
        self._tensors = [np.full(dims, POISON, dtype=np.uint64) for _ in range(shape.n_tensors)]
        self.bases = [int(t.ctypes.data) for t in self._tensors]

    def use(self) -> None:
        return

    def fill_pattern(self) -> None:
        for i, tensor in enumerate(self._tensors):
            for run, pattern in self.shape.pieces(i):
                tensor[run, :, : self.shape.words] = pattern

    def poison(self, blocks: Words) -> None:
        halves = np.arange(self.shape.halves, dtype=np.uint64)
        for tensor in self._tensors:
            tensor[np.ix_(blocks, halves, self.shape.probes)] = POISON

    def probed(self, tensor: int, blocks: Words) -> Words:
        halves = np.arange(self.shape.halves, dtype=np.uint64)
        return self._tensors[tensor][np.ix_(blocks, halves, self.shape.probes)]

    def read_block(self, tensor: int, block: int) -> Words:
        return self._tensors[tensor][block, :, : self.shape.words]


class _Copy2D(ctypes.Structure):
    """``CUDA_MEMCPY2D`` of the CUDA driver API."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_MAX_PITCH = 2**31 - 1  # CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far


class _CudaPool(_Checks):
    """Pool in GPU memory from ``cuMemAlloc``: CUDA's older IPC, which UCX needs, takes it."""

    segment = "VRAM"

    def __init__(self, shape: PoolShape, device: int) -> None:
        self.shape = shape
        self.device = device
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"engine.memory=VRAM needs the CUDA driver library: {error}") from None
        self._call("cuInit", ctypes.c_uint(0))
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.use()
        self.bases = [self._allocate() for _ in range(shape.n_tensors)]

    def use(self) -> None:
        """Make the GPU's context current: every thread that touches the pool needs it."""
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise CudaError(f"{name} failed: {(text.value or b'?').decode()} ({status})")

    def _allocate(self) -> int:
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(self.shape.tensor_bytes)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0xFF), size)
        return int(address.value)

    def fill_pattern(self) -> None:
        shape = self.shape
        block_bytes = shape.halves * shape.stride_bytes
        for i, base in enumerate(self.bases):
            for run, pattern in shape.pieces(i):
                dims = (*pattern.shape[:2], shape.stride_words)
                words = np.full(dims, POISON, dtype=np.uint64)
                words[:, :, : shape.words] = pattern
                target = ctypes.c_uint64(base + run.start * block_bytes)
                source = ctypes.c_void_p(words.ctypes.data)
                self._call("cuMemcpyHtoD_v2", target, source, ctypes.c_size_t(words.nbytes))
        self._call("cuCtxSynchronize")

    def poison(self, blocks: Words) -> None:
        for base in self.bases:
            for run in _runs(blocks):
                words = np.full(run.size * self.shape.halves, POISON, dtype=np.uint64)
                for probe in self.shape.probes:
                    self._copy_column(words, self._address(base, run, probe), to_device=True)
        self._call("cuCtxSynchronize")

    def _address(self, base: int, run: Words, probe: np.uint64) -> int:
        block_bytes = self.shape.halves * self.shape.stride_bytes
        return base + int(run[0]) * block_bytes + int(probe) * WORD_BYTES

    def probed(self, tensor: int, blocks: Words) -> Words:
        shape = self.shape
        out = np.empty((shape.probes.size, blocks.size * shape.halves), dtype=np.uint64)
        start = 0
        for run in _runs(blocks):
            stop = start + run.size * shape.halves
            for row, probe in zip(out, shape.probes):
                address = self._address(self.bases[tensor], run, probe)
                self._copy_column(row[start:stop], address, to_device=False)
            start = stop
        return out.T.reshape(blocks.size, shape.halves, shape.probes.size)

    def read_block(self, tensor: int, block: int) -> Words:
        shape = self.shape
        out = np.empty((shape.halves, shape.stride_words), dtype=np.uint64)
        source = ctypes.c_uint64(self.bases[tensor] + block * out.nbytes)
        target = ctypes.c_void_p(out.ctypes.data)
        self._call("cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(out.nbytes))
        return out[:, : shape.words]

    def _copy_column(self, words: Words, address: int, *, to_device: bool) -> None:
        """Copy one word per descriptor between host and device; ``words`` is contiguous."""
        if self.shape.stride_bytes > _MAX_PITCH:
            self._copy_words(words, address, to_device=to_device)
            return
        host = {"host": words.ctypes.data, "pitch": WORD_BYTES}
        copy = _Copy2D(width=WORD_BYTES, height=words.size)
        if to_device:
            copy.src_type, copy.src_host, copy.src_pitch = _HOST, host["host"], host["pitch"]
            copy.dst_type, copy.dst_device = _DEVICE, address
            copy.dst_pitch = self.shape.stride_bytes
        else:
            copy.src_type, copy.src_device = _DEVICE, address
            copy.src_pitch = self.shape.stride_bytes
            copy.dst_type, copy.dst_host, copy.dst_pitch = _HOST, host["host"], host["pitch"]
        self._call("cuMemcpy2D_v2", ctypes.byref(copy))

    def _copy_words(self, words: Words, address: int, *, to_device: bool) -> None:
        for row in range(words.size):
            device = ctypes.c_uint64(address + row * self.shape.stride_bytes)
            host, size = ctypes.c_void_p(words[row:].ctypes.data), ctypes.c_size_t(WORD_BYTES)
            if to_device:
                self._call("cuMemcpyHtoD_v2", device, host, size)
            else:
                self._call("cuMemcpyDtoH_v2", host, device, size)


def _runs(blocks: Words) -> list[Words]:
    """Cut block ids where they do not follow each other; a run is one strided copy."""
    cuts = np.flatnonzero(np.diff(blocks.astype(np.int64)) != 1) + 1
    return np.split(blocks, cuts)


def make_pool(shape: PoolShape, memory: str, device: int) -> Pool:
    """Return a pool in ``DRAM`` or ``VRAM``.

    Raises
    ------
    CudaError
        When VRAM is asked for and the driver cannot give it.
    """
    return _CudaPool(shape, device) if memory == "VRAM" else _HostPool(shape)
