"""What is due when a reader looks, and when a call is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from rpcfut_transport._errors import LocalProtocolError
from rpcfut_transport._wire import MAX_REMAINING_S

if TYPE_CHECKING:
    from rpcfut_transport._calls import CallKey, ReplySink


class Due(NamedTuple):
    """What the reader has to do before it sleeps.

    Args:
        expired: Whom to tell that their time is over.
        ended: The callees to tell that.
        asks: The calls to ask about: their time is nearly over, or they may be lost.
        slow: Whom to tell that their call takes long.
        lost: The peers that are lost, in which life, and why.
    """

    expired: list[ReplySink]
    ended: list[CallKey]
    asks: list[CallKey]
    slow: list[ReplySink]
    lost: list[tuple[int, int, str]]


def deadline_of(timeout_s: float, now_s: float) -> float | None:
    """When a call ends unanswered, monotonic; None for never.

    Raises:
        LocalProtocolError: When the timeout is no number of seconds from 0 on.
    """
    if timeout_s == math.inf:
        return None
    if not timeout_s >= 0:
        raise LocalProtocolError(
            f"got timeout_s={timeout_s!r}; wanted seconds from 0 on, or None"
        )
    return now_s + min(timeout_s, MAX_REMAINING_S)
