"""What is due when a reader looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
