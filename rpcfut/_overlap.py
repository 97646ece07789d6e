"""Which ranges of memory overlap. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def overlapping(
    numbers: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> list[list[int]]:
    """Group ranges that overlap, also over others; in O(n log n).

    Args:
        numbers: The ranges that are looked at; none is empty.
        starts: First byte of each range, by its number.
        ends: Byte behind the last one of each range, by its number.

    Returns:
        The groups of two and more, each in the order of the ranges' starts.
    """
    groups: list[list[int]] = []
    last, end = -1, -1
    is_open = False
    # Sorted by a list of numbers, not as pairs: pairs of a hundred thousand tensors
    # would cost the garbage collector more than the sorting.
    for number in sorted(numbers, key=starts.__getitem__):
        if starts[number] < end:
            if not is_open:
                groups.append([last])
                is_open = True
            groups[-1].append(number)
            end = max(end, ends[number])
        else:
            last, end, is_open = number, ends[number], False
    return groups
