"""Columns of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table_lines"]


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = ""
) -> list[str]:
    """Return lines with columns as wide as their widest cell; numbers stand to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    is_number = [
        all(row[i][:1].isdigit() or row[i][:1] in ("+", "-", "") for row in rows)
        for i in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        return (indent + "  ".join(padded)).rstrip()

    return [line(header), *(line(row) for row in rows)]
