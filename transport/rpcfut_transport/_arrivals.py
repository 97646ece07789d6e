"""Which messages came before: nothing is done twice, or after it was given up.

Theory of operation: pure. A sender numbers its messages to a receiver in the order in
which it hands them to its link, and links keep that order. So of those that start
something, a call, one with a number that is not above all earlier ones came twice, or
was overtaken. Neither is taken: it may have run, or its caller was told meanwhile that
it is not here, and made its own sense of that (RPC-5).
"""

from __future__ import annotations


class Arrivals:
    """The newest number of each sender. One thread at a time, the reader."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}

    def is_new(self, rank: int, incarnation: int, number: int) -> bool:
        """Take note of a message that must be taken once, and in order.

        Args:
            rank: Who sent it.
            incarnation: Which life of the sender; its present one.
            number: Which one of that life; 0 is always new.

        Returns:
            Whether it was sent after all of that life that were noted before.
        """
        life, newest = self._newest.get(rank, (incarnation, 0))
        if life == incarnation and number <= newest:
            return number == 0
        self._newest[rank] = (incarnation, number)
        return True

    def __repr__(self) -> str:
        newest = {rank: number for rank, (_, number) in sorted(self._newest.items())}
        return f"<Arrivals newest={newest!r}>"
