"""Questions to an exception whose class nobody knows, and texts of bounded size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_TEXT: Final = 64 * 1024
MAX_NOTE: Final = 4 * 1024

# Escape sequences, other control characters, and those that turn the order of writing:
# a remote text must not be able to forge a line of a log or repaint a terminal.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def ask(question: Callable[[], T], otherwise: T) -> T:
    """Ask an exception something; whatever its own code raises is no answer."""
    try:
        return question()
    except BaseException:  # noqa: BLE001 - an error about an error has nowhere to go
        return otherwise


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a text, and write what is not plain text as escapes."""
    whole = str.__str__(text)  # of a subclass too, whatever it overrides
    plain = whole[:limit].encode("utf-8", "backslashreplace").decode("utf-8")
    plain = _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], plain)
    if len(whole) <= limit and len(plain) <= limit:
        return plain
    return f"{plain[:limit]} [cut: it has {len(whole)} characters]"


def own(error: BaseException, name: str) -> Any:
    """Read what Python keeps in an exception, whatever its class says of that name."""
    return vars(BaseException)[name].__get__(error)


def describe(error: BaseException) -> str:
    """Write an exception for a log; this cannot fail either."""
    return clean(ask(lambda: repr(error), "<its __repr__ raised>"), MAX_NOTE)


class Room:
    """What is left of the bytes that a node may take; owner thread only.

    Args:
        nbytes: In the body.
        cost: In the memory of the receiver, for values; see `_wire_weights`.
    """

    def __init__(self, nbytes: int, cost: int) -> None:
        self._left = nbytes
        self._cost_left = cost

    def text(self, text: str, limit: int = MAX_TEXT) -> str:
        """Clean a text and cut it, so that some room is left for others."""
        cut = clean(text, min(limit, self._left // 8))  # a character: 4 bytes at most
        self._left = max(0, self._left - len(cut.encode()))
        return cut

    def has_taken(self, body: bytes, cost: int) -> bool:
        """Take room for a value, if there is enough."""
        is_enough = len(body) <= self._left and cost <= self._cost_left
        if is_enough:
            self._left -= len(body)
            self._cost_left -= cost
        return is_enough
