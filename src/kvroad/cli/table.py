"""Columns of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

__all__ = ["table_lines"]


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns as wide as their widest cell; numbers stand to the right."""
    sides = [
        "right" if all(not cell or cell[0] in "+-0123456789" for cell in column) else "left"
        for column in zip(*rows, strict=True)
    ]
    # The header is a row, since tabulate pads columns to two more than their header. Numbers come
    # with the digits that they are to show: none is to be parsed and written anew.
    text = tabulate([header, *rows], tablefmt="plain", colalign=sides, disable_numparse=True)
    return [line.rstrip() for line in text.splitlines()]
