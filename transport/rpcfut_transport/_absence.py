"""Which peers have had no connection for too long.

Theory of operation: a pure state machine, told what happens to the ways and what time
it is. A way that ends proves nothing, it is made anew (RPC-7); only one that stays away
makes its peer lost. Time counts in steps no longer than two looks, so that the time for
which this process itself was stopped, in which nobody could have connected, does not
count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcfut_transport._patience import Patience

_MAX_LOOKS = 2


@dataclass(slots=True, kw_only=True)
class _Absent:
    is_first: bool  # there was no connection yet
    limit_s: float
    seen_s: float  # up to when its absence is counted
    absent_s: float = 0.0


class Absences:
    """The peers without a connection. Its driver holds a lock.

    Args:
        patience: When they count as lost.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._absent: dict[int, _Absent] = {}

    def on_opening(self, rank: int, now_s: float) -> None:
        """Take note that the first connection to a peer is being made."""
        limit_s = self._patience.first_s
        self._absent[rank] = _Absent(is_first=True, limit_s=limit_s, seen_s=now_s)

    def on_broken(self, rank: int, now_s: float) -> None:
        """Take note that the connection to a peer ended; a new one is being made."""
        limit_s = self._patience.absence_s
        if rank not in self._absent:
            self._absent[rank] = _Absent(is_first=False, limit_s=limit_s, seen_s=now_s)

    def on_open(self, rank: int) -> bool:
        """Take note that there is a connection, or that the peer is gone.

        Returns:
            Whether there was an earlier one, which ended.
        """
        absent = self._absent.pop(rank, None)
        return absent is not None and not absent.is_first

    def take_lost(self, now_s: float) -> list[tuple[int, str]]:
        """Take the peers that have been away for too long, with the reason in words."""
        if not self._absent:
            return []
        lost: list[tuple[int, str]] = []
        longest_s = _MAX_LOOKS * self._patience.look_s
        for rank, absent in list(self._absent.items()):
            absent.absent_s += min(max(now_s - absent.seen_s, 0.0), longest_s)
            absent.seen_s = now_s
            if absent.absent_s >= absent.limit_s:
                del self._absent[rank]
                lost.append((rank, self._reason(absent)))
        return lost

    def next_look_s(self) -> float | None:
        """When to call `take_lost` again; None for never."""
        if not self._absent:
            return None
        first_s = min(absent.seen_s for absent in self._absent.values())
        return first_s + self._patience.look_s

    def _reason(self, absent: _Absent) -> str:
        if absent.is_first:
            return f"no connection to it came about within {absent.absent_s:.0f} s"
        return (
            f"its connection ended, and for {absent.absent_s:.1f} s no new one came "
            f"about (lost_after_s={self._patience.lost_after_s:g})"
        )

    def __repr__(self) -> str:
        return f"<Absences of ranks {sorted(self._absent)}>"
