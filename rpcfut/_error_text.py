"""Questions to an exception whose class nobody knows, and texts of bounded size."""

from __future__ import annotations

import itertools
import os
import re
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

T = TypeVar("T")

MAX_TEXT: Final = 64 * 1024
MAX_NOTE: Final = 4 * 1024
MAX_LINE: Final = 1024

# Escape sequences, other control characters, those that turn the order of writing, and
# those that show nothing: a remote text must not be able to repaint a terminal or to
# look like another one. The second one takes what breaks a line, too.
_UNSAFE: Final = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069"
    "\ufeff\U000e0000-\U000e007f]"
)
_UNSAFE_TEXT: Final = re.compile(_UNSAFE)
_UNSAFE_LINE: Final = re.compile(_UNSAFE + "|[\t\n]")
_OWN_FOLDER: Final = f"{Path(__file__).parent}{os.sep}"
_FIRST_FRAMES: Final = 20
_LAST_FRAMES: Final = 80


def ask(question: Callable[[], T], otherwise: T) -> T:
    """Ask an exception something; whatever its own code raises is no answer."""
    try:
        return question()
    except BaseException:  # noqa: BLE001 - an error about an error has nowhere to go
        return otherwise


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a text, and write what is not plain text as escapes."""
    return _cleaned(text, limit, _UNSAFE_TEXT)


def clean_line(text: str, limit: int = MAX_LINE) -> str:
    """Do the same, and keep it on one line: a name, a place."""
    return _cleaned(text, limit, _UNSAFE_LINE)


def _cleaned(text: str, limit: int, unsafe: re.Pattern[str]) -> str:
    whole = str.__str__(text)  # of a subclass too, whatever it overrides
    plain = whole[:limit].encode("utf-8", "backslashreplace").decode("utf-8")
    plain = unsafe.sub(lambda found: ascii(found[0])[1:-1], plain)
    if len(whole) <= limit and len(plain) <= limit:
        return plain
    over = len(whole) - limit
    remark = f"it has {len(whole)} characters"
    if over > 0:
        remark = f"{over} of {len(whole)} characters are left out"
    return f"{plain[:limit]} [cut: {remark}]"


def own(error: BaseException, name: str) -> Any:
    """Read what Python keeps in an exception, whatever its class says of that name."""
    return vars(BaseException)[name].__get__(error)


def traceback_text(error: BaseException) -> str:
    """The frames of a traceback, without those of ours that called the function."""
    frames = user_frames(error)
    first = list(itertools.islice(frames, _FIRST_FRAMES))
    last = deque(enumerate(frames), maxlen=_LAST_FRAMES)
    text = _written(first)
    if last and last[0][0] > 0:
        text += f"  [{last[0][0]} frames are left out]\n"
    return text + _written([frame for _, frame in last])


def user_frames(error: BaseException) -> Iterator[TracebackType]:
    """The entries of a traceback, from the first that is not this library's."""
    entry = own(error, "__traceback__")
    while entry and entry.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        entry = entry.tb_next
    while entry:
        yield entry
        entry = entry.tb_next


def _written(entries: list[TracebackType]) -> str:
    frames = [traceback.extract_tb(entry, limit=1)[0] for entry in entries]
    return "".join(traceback.format_list(frames))


def describe(error: BaseException) -> str:
    """Write an exception for a log; this cannot fail either."""
    return clean(ask(lambda: repr(error), "<its __repr__ raised>"), MAX_NOTE)


class Room:
    """What is left of the bytes that a node may take; owner thread only.

    Args:
        nbytes: In the body.
        cost: In the memory of the receiver, for values; see `_wire_weights`.
        inside: The room that this one is part of.
    """

    def __init__(self, nbytes: int, cost: int, inside: Room | None = None) -> None:
        self._left = nbytes
        self._cost_left = cost
        self._inside = inside

    def text(self, text: str, limit: int = MAX_TEXT) -> str:
        """Clean a text and cut it, so that some room is left for others."""
        return self.take(clean(text, self.limit_of(limit)))

    def line(self, text: str) -> str:
        """Do the same for what is to stay on one line."""
        return self.take(clean_line(text, self.limit_of(MAX_LINE)))

    def limit_of(self, limit: int) -> int:
        """How many characters a text may have; some room is left for others."""
        fitting = min(limit, self._left // 8)  # a character takes 4 bytes at most
        return self._inside.limit_of(fitting) if self._inside else fitting

    def take(self, cut: str) -> str:
        """Take room for a text that was cut."""
        self._left = max(0, self._left - len(cut.encode()))
        return self._inside.take(cut) if self._inside else cut

    def has_taken(self, body: bytes, cost: int) -> bool:
        """Take room for a value, if there is enough."""
        is_enough = len(body) <= self._left and cost <= self._cost_left
        if is_enough and self._inside:
            is_enough = self._inside.has_taken(body, cost)
        if is_enough:
            self._left -= len(body)
            self._cost_left -= cost
        return is_enough
