"""Tables of plain text, safe to print on a terminal.

Names, texts and places come from other processes: whatever is not plain text in them is
written as an escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcfut._error_text import clean_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as they must be; the last one is not filled up."""
    cells = [head, *([clean_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    widths[-1] = 0
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]


def seconds(value_s: float | None, after: str = "") -> str:
    """A time as a cell; a dash where there is none."""
    return "-" if value_s is None else f"{value_s:.1f} s{after}"


def kibibytes(nbytes: int | None) -> str:
    """An amount of memory as a cell; a dash where nobody knows."""
    return "-" if nbytes is None else f"{nbytes / 1024:.1f} KiB"
