"""The calls that one worker serves, by who called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcfut._serving import ServedCall


class ServedTable:
    """All calls that came and are not answered yet. Any thread.

    Each method is a single operation on a dict, which needs no lock.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], ServedCall] = {}

    def __repr__(self) -> str:
        return f"<ServedTable: {len(self._calls)} calls>"

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, rank: int, call_id: int, call: ServedCall) -> None:
        """Take note of a call that came."""
        self._calls[rank, call_id] = call

    def remove(self, rank: int, call_id: int, call: ServedCall) -> None:
        """Take note that a call was answered."""
        # A restarted caller counts from 1 again.
        if self._calls.get((rank, call_id)) is call:
            self._calls.pop((rank, call_id), None)

    def find(self, rank: int, call_id: int) -> ServedCall | None:
        """The call of a caller; None if it did not come or was answered."""
        return self._calls.get((rank, call_id))

    def all(self) -> list[ServedCall]:
        """The calls that are not answered yet."""
        return list(self._calls.values())

    def take_of(self, rank: int) -> list[ServedCall]:
        """Forget the calls of a caller that is gone, and return them."""
        calls = list(self._calls.items())
        for key, call in calls:
            if key[0] == rank:
                self.remove(rank, key[1], call)
        return [call for key, call in calls if key[0] == rank]
