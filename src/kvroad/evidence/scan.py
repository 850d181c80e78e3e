"""Finds the few lines of a long log that matter, at the speed of a byte search.

A serving engine writes gigabytes in a night. They are read in blocks, and only lines that
hold one of some needles are ever cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

__all__ = ["LineScan"]

BLOCK_BYTES = 1 << 20


class LineScan:
    r"""The lines of a file that hold a needle; lines end with ``\n`` alone.

    Memory is bounded by the block and the longest line.

    Parameters
    ----------
    needles
        Iterating yields the number, from 1, and the bytes of each line that holds one.
    keep_last
        How many of the file's last lines to keep, whatever is in them.
    see
        Called with every block as it is read, such as to hash it.

    Attributes
    ----------
    n_lines, last
        What was read; known once the iteration has ended.
    """

    def __init__(
        self,
        file: BinaryIO,
        needles: Sequence[bytes],
        keep_last: int = 0,
        see: Callable[[bytes], object] | None = None,
    ) -> None:
        self._file = file
        self._needles = needles
        self._keep_last = keep_last
        self._see = see
        self.n_lines = 0
        self.last: list[bytes] = []

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Read the file to its end."""
        begun: list[bytes] = []
        while chunk := self._file.read(BLOCK_BYTES):
            if self._see is not None:
                self._see(chunk)
            cut = chunk.rfind(b"\n") + 1
            if cut:
                yield from self._lines_of(b"".join([*begun, chunk[:cut]]))
                begun = []
            begun.append(chunk[cut:])
        if rest := b"".join(begun):
            yield from self._lines_of(rest)

    def _lines_of(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        number, place = self.n_lines + 1, 0
        for start in self._starts(block):
            number += block.count(b"\n", place, start)
            place = start
            end = block.find(b"\n", start)
            yield number, block[start : end if end >= 0 else None]
        self.n_lines += block.count(b"\n") + (not block.endswith(b"\n"))
        if self._keep_last:
            tail = block.removesuffix(b"\n").rsplit(b"\n", self._keep_last)
            self.last = [*self.last, *tail[-self._keep_last :]][-self._keep_last :]

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
