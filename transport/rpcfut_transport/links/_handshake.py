"""What the handshakes of one way by TCP say of it. Pure: it is told what happens.

Theory of operation. A peer that does not let our key in says so, and ZeroMQ gives up;
so it does when it is answered in words that it does not know. A peer of another key
hangs up as soon as it has read our first words, and ZeroMQ tries again, ten times a
second for ever; each of these alone may be a peer that just ends. A peer that is slow,
busy or stopped hangs up late or not at all, which says nothing.
"""

from __future__ import annotations

_AT_ONCE_S = 1.0
_MANY = 3
_LONG_S = 1.0


class Handshake:
    """The handshakes of one way. One thread; does not block."""

    def __init__(self) -> None:
        self._connected_at_s: float | None = None
        self._hangups = 0
        self._first_hangup_s = 0.0

    def on_connected(self, now_s: float) -> None:
        """Take note that somebody accepted the connection."""
        self._connected_at_s = now_s

    def on_done(self) -> None:
        """Take note that the keys are right."""
        self._connected_at_s = None
        self._hangups = 0

    def on_broken(self, now_s: float) -> bool:
        """Take note that the connection ended before the keys were seen to be right.

        Returns:
            Whether it looks as if that would go on for ever.
        """
        since_s, self._connected_at_s = self._connected_at_s, None
        if since_s is None:
            return False
        if now_s - since_s > _AT_ONCE_S:
            self._hangups = 0
            return False
        if self._hangups == 0:
            self._first_hangup_s = now_s
        self._hangups += 1
        return self._hangups >= _MANY and now_s - self._first_hangup_s >= _LONG_S

    def __repr__(self) -> str:
        return f"<Handshake hangups={self._hangups}>"
