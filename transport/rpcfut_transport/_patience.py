"""How long a peer may be silent: all the times that follow from one figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOST_AFTER_S = 10.0
_MIN_S = 1.0
_MAX_S = 86_400.0
_MAX_STEP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When silence counts as a loss; docs/design/threads.md says why so.

    Args:
        lost_after_s: For how long a peer may be stopped or cut off, in seconds.

    Raises:
        ValueError: When that is no number of seconds from 1 to a day.
    """

    lost_after_s: float = LOST_AFTER_S

    def __post_init__(self) -> None:
        given = self.lost_after_s
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not is_number or not _MIN_S <= given <= _MAX_S:
            raise ValueError(
                f"lost_after_s must be from {_MIN_S:g} s to {_MAX_S:g} s, got {given!r}"
            )

    @property
    def heartbeat_s(self) -> float:
        """How often a peer is asked for a sign of life."""
        return min(self.lost_after_s / 10, _MAX_STEP_S)

    @property
    def silence_s(self) -> float:
        """After how long without one its connection is given up, and made anew."""
        return self.lost_after_s * 0.8

    @property
    def absence_s(self) -> float:
        """After how long without a connection it counts as lost."""
        return self.lost_after_s * 0.4

    @property
    def first_s(self) -> float:
        """The same before the first connection: it may still be reading who we are."""
        return max(60.0, self.lost_after_s)

    @property
    def retry_s(self) -> float:
        """How long one try to connect may take, and the pause before the next."""
        return min(self.lost_after_s / 10, _MAX_STEP_S)

    @property
    def look_s(self) -> float:
        """How often to look while there is no connection."""
        return min(self.absence_s / 4, _MAX_STEP_S)


def in_ms(seconds: float) -> int:
    """Whole milliseconds, one at least."""
    return max(1, math.ceil(seconds * 1000))
