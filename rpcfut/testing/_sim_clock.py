"""Vector clocks: what is known to have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class VectorClock:
    """How many operations of each queue have happened before a point.

    Args:
        counts: Operations by queue number; queues that are not named count 0.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts: dict[int, int] = dict(counts or {})

    def __repr__(self) -> str:
        return f"<VectorClock {self._counts}>"

    def __le__(self, other: VectorClock) -> bool:
        known = other._counts
        return all(known.get(queue, 0) >= n for queue, n in self._counts.items())

    def copy(self) -> VectorClock:
        """A clock that shows the same and moves on its own."""
        return VectorClock(self._counts)

    def join(self, other: VectorClock) -> None:
        """Know what `other` knows as well."""
        counts = self._counts
        for queue, n in other._counts.items():
            if counts.get(queue, 0) < n:
                counts[queue] = n

    def tick(self, queue: int) -> int:
        """One more operation of a queue; returns its number, counted from 1."""
        n = self._counts.get(queue, 0) + 1
        self._counts[queue] = n
        return n

    def covers(self, queue: int, n: int) -> bool:
        """Whether operation `n` of a queue happened before."""
        return self._counts.get(queue, 0) >= n
