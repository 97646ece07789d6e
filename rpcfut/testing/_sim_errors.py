"""What the simulated device finds.

RuntimeError
├── RaceError                two operations that nothing orders
│   └── UseAfterFreeError    the first worked on memory given to somebody else
└── BrokenCaptureError       an order that would cross the edge of a capture
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AccessKind: TypeAlias = Literal["read", "write"]
"""What an operation does to a block of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One access to memory, in words.

    Args:
        name: What was called, as in ``"add_"``.
        kind: ``"read"`` or ``"write"``.
        place: What ran it: a stream with its device, or the host.
        site: ``file:line`` of the user's frame that queued it.
    """

    name: str
    kind: AccessKind
    place: str
    site: str

    def __str__(self) -> str:
        return f"the {self.kind} by {self.name} on {self.place} at {self.site}"


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One owner of a block of memory, in words.

    Args:
        number: Counts the allocations of a simulation.
        length: How many elements it has.
        site: ``file:line`` where it was made.
        freed_at: ``file:line`` where its array died, None while it lives.
    """

    number: int
    length: int
    site: str
    freed_at: str | None = None

    def __str__(self) -> str:
        return f"array {self.number} ({self.length} elements, made at {self.site})"


class RaceError(RuntimeError):
    """Two operations on the same memory, one of them a write, have no order.

    On a real device they run in either order, or at the same time. Raised where the
    second one is queued, whatever the seed.

    Args:
        first: The operation that was queued first.
        second: The operation that nothing orders behind it.
        allocation: The array that the second one works on.
    """

    def __init__(
        self, first: Operation, second: Operation, allocation: Allocation
    ) -> None:
        self.first = first
        self.second = second
        self.allocation = allocation
        super().__init__(self._describe())

    def _describe(self) -> str:
        return (
            f"race on {self.allocation}: {self.second} is not ordered behind "
            f"{self.first}; record an event behind the first and make the stream of "
            "the second wait for it, or hand the value over in a future"
        )


class UseAfterFreeError(RaceError):
    """The first operation's array died, and its memory went to another array.

    Nothing told the allocator that the first operation's stream still used it.

    Args:
        first: The operation on the array that died.
        second: The operation on the array that has the memory now.
        allocation: The array that has the memory now.
        former: The array that died.
    """

    def __init__(
        self,
        first: Operation,
        second: Operation,
        allocation: Allocation,
        former: Allocation,
    ) -> None:
        self.former = former
        super().__init__(first, second, allocation)

    def _describe(self) -> str:
        return (
            f"use after free: {self.first} worked on {self.former}, which was freed "
            f"at {self.former.freed_at}; its memory went to {self.allocation}, and "
            f"{self.second} is not ordered behind the first; keep the array until its "
            "stream is through, or tell the allocator (keep_alive, record_stream)"
        )


class BrokenCaptureError(RuntimeError):
    """An event, or a wait for one, on a stream that is being captured.

    It would order what runs now against what runs when the graph is replayed. Raised
    where that was asked for, and again where the capture ends.
    """
