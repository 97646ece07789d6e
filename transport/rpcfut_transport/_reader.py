"""What a thread does that has the turn to read: one message at a time.

Theory of operation. A reader sleeps until a message comes or something is due: the
earliest deadline of an open call, mostly. Whoever opens a call that ends earlier wakes
it (see `Ledger.due_at_s`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rpcfut_transport._wire import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._calls import Work
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._due import Due
    from rpcfut_transport._filing import Filing
    from rpcfut_transport._ledger import Ledger
    from rpcfut_transport._rooms import Rooms
    from rpcfut_transport._sender import Sender
    from rpcfut_transport.links._link import Link

_DEEP = 32  # with more calls open, callees have enough to do until more are held
_COARSE_S = 0.05  # longer sleeps are rounded down, so that most are alike


class Reader:
    """Reads for one endpoint. One thread at a time.

    Args:
        link: Where messages come from.
        clock: What deadlines are measured on.
        ledger: Knows what is due, and when.
        sender: Sends what is held, and what is due.
        filing: Takes what was read.
        lose: Told the rank and incarnation of a peer that is lost, and why.
        rooms: Asks again, for those that wait for room.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - an endpoint's parts
        self,
        link: Link,
        clock: Clock,
        ledger: Ledger,
        sender: Sender,
        filing: Filing,
        rooms: Rooms,
        lose: Callable[[int, int, str], None],
    ) -> None:
        self._link = link
        self._clock = clock
        self._ledger = ledger
        self._sender = sender
        self._filing = filing
        self._sleep_s = 0.0
        self._slept_until_s = self._is_right_until_s = -math.inf
        self._rooms = rooms
        self._lose = lose

    def __repr__(self) -> str:
        return f"<Reader of {self._link!r}>"

    def pull(self, timeout_s: float | None) -> Sequence[Work]:
        """Read and file one message, or do what is due; return the work it brings.

        Blocks without the GIL, for at most `timeout_s` seconds; it may return earlier.

        Raises:
            ClosedError: When the endpoint was closed.
            LinkError: When the operating system refuses.
        """
        ledger = self._ledger
        if self._sender.has_held and ledger.pending_count <= _DEEP:
            self._sender.flush()
        now_s = self._clock.now_s()
        if now_s >= ledger.due_at_s:
            self._do(ledger.take_due(now_s))
            return ()  # what this thread waits for may have ended
        due_at_s = ledger.begin_sleep()
        if due_at_s != self._slept_until_s or now_s > self._is_right_until_s:
            self._plan_sleep(due_at_s, now_s)
        sleep_s = self._sleep_s
        if timeout_s is not None and timeout_s < sleep_s:
            sleep_s = max(timeout_s, 0.0)
        try:
            frames = self._link.receive(sleep_s)
        finally:
            ledger.end_sleep()
        return () if frames is None else self._filing.file(frames)

    def _plan_sleep(self, due_at_s: float, now_s: float) -> None:
        """Find a length of sleep that is right for a while: most are alike then."""
        left_s = max(due_at_s - now_s, 0.0)
        if left_s > _COARSE_S:
            left_s = math.ldexp(0.25, math.frexp(left_s)[1])  # half of it, or less
        self._sleep_s = left_s
        self._slept_until_s = due_at_s
        self._is_right_until_s = min(now_s + left_s, due_at_s - left_s)

    def _do(self, due: Due | None) -> None:
        if due is None:
            raise self._ledger.closed_error()
        tell, sender = self._filing.tell, self._sender
        for call in due.asks:
            sender.send_about(Kind.ASK, call)
        for sink in due.expired:
            tell(sink.on_timeout)
        for call in due.ended:
            sender.send_about(Kind.CANCEL, call)
        for sink in due.slow:
            tell(sink.on_slow)
        for rank, incarnation, reason in due.lost:
            self._lose(rank, incarnation, reason)
        self._rooms.repeat_asking()
