"""Finds the few lines of a long log that matter, at the speed of a byte search.

A serving engine writes gigabytes in a night. They are read in blocks, and only lines that
hold one of some needles are ever cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

__all__ = ["ByteSource", "LineScan"]

BLOCK_BYTES = 1 << 20
# Most logs are short, and memory for a whole block is dear to get for each of them.
FIRST_BYTES = 1 << 16
LINE_BYTES = 1 << 20


class ByteSource(Protocol):
    """A file of bytes, or what reads like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""
        ...


class LineScan:
    r"""The lines of a file that hold a needle; lines end with ``\n`` alone.

    Memory is bounded by the block and by ``longest``.

    Parameters
    ----------
    needles
        Iterating yields the number, from 1, and the bytes of each line that holds one.
    keep_last
        How many of the file's last lines to keep, whatever is in them.
    see
        Called with every block as it is read, such as to hash it.
    longest
        Bytes of a line that are given; what comes after them may be passed over.

    Attributes
    ----------
    n_lines, last
        What was read; known once the iteration has ended.
    """

    def __init__(
        self,
        file: ByteSource,
        needles: Sequence[bytes],
        keep_last: int = 0,
        see: Callable[[bytes], object] | None = None,
        longest: int = LINE_BYTES,
    ) -> None:
        self._file = file
        self._longest = longest
        self._needles = needles
        self._keep_last = keep_last
        self._see = see
        self.n_lines = 0
        self.last: list[bytes] = []

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Read the file to its end."""
        begun: list[bytes] = []
        n_begun = 0
        size = min(FIRST_BYTES, BLOCK_BYTES)
        while chunk := self._file.read(size):
            if len(chunk) == size:
                size = BLOCK_BYTES
            if self._see is not None:
                self._see(chunk)
            # Of an endless line only the end is looked for.
            start = chunk.find(b"\n") if n_begun >= self._longest else 0
            if start < 0:
                continue
            cut = chunk.rfind(b"\n") + 1
            if cut:
                yield from self._lines_of(b"".join([*begun, chunk[start:cut]]))
                begun, n_begun, start = [], 0, cut
            begun.append(chunk[start:])
            n_begun += len(chunk) - start
        if rest := b"".join(begun):
            yield from self._lines_of(rest)

    def _lines_of(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        number, place = self.n_lines + 1, 0
        for start in self._starts(block):
            number += block.count(b"\n", place, start)
            place = start
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            yield number, block[start : min(end, start + self._longest)]
        self.n_lines += block.count(b"\n") + (not block.endswith(b"\n"))
        if self._keep_last:
            tail = block.removesuffix(b"\n").rsplit(b"\n", self._keep_last)
            tail = [line[: self._longest] for line in tail[-self._keep_last :]]
            self.last = [*self.last, *tail][-self._keep_last :]

    def _starts(self, block: bytes) -> list[int]:
        """Return where the lines that hold a needle begin, in order."""
        starts = set()
        for needle in self._needles:
            place = block.find(needle)
            while place >= 0:
                starts.add(block.rfind(b"\n", 0, place) + 1)
                end = block.find(b"\n", place)
                place = block.find(needle, end) if end >= 0 else -1
        return sorted(starts)
