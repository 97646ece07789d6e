"""A call that waits for its answer."""

from __future__ import annotations

from typing import NamedTuple


class OpenCall(NamedTuple):
    """A call that waits for its answer.

    Args:
        rank: Whom it waits for.
        incarnation: Which life of that peer.
        deadline_s: When it ends unanswered, monotonic; None for never.
        opened_s: When it was opened, monotonic.
    """

    rank: int
    incarnation: int
    deadline_s: float | None
    opened_s: float
