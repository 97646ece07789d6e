"""What a future, an error or a log line says about the call it belongs to."""

from __future__ import annotations

import sys
import threading
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from rpcfut_transport import Inbox

_HERE = str(PurePath(__file__).parent / "_")[:-1]  # with the separator
_PYTHONS = str(PurePath(threading.__file__).parent / "_")[:-1]


class CallInfo:
    """One call, in words. Never changed.

    Args:
        worker: Name of the worker that made the call.
        to: Name of the worker that runs it.
        function: Name of the function, as it travels.
        site: ``file:line`` where the call was made; or the place in the code, which is
            looked up only when it is asked for.
    """

    __slots__ = ("_site", "function", "to", "worker")

    def __init__(
        self, *, worker: str, to: str, function: str, site: str | tuple[CodeType, int]
    ) -> None:
        self.worker = worker
        self.to = to
        self.function = function
        self._site = site

    def __repr__(self) -> str:
        return f"<CallInfo of {self.worker!r}: {self}>"

    @property
    def site(self) -> str:
        """``file:line`` where the call was made."""
        site = self._site
        return site if isinstance(site, str) else str(Site(*site))

    def __str__(self) -> str:
        return f"{self.function} on worker {self.to!r}, called at {self.site}"


class PendingCall(CallInfo):
    """A call that a future waits for: what the future may want of it."""

    __slots__ = ()

    @property
    def inbox(self) -> Inbox | None:
        """Where the answer arrives."""
        return None

    def give_up(self) -> None:
        """Take note that nobody waits for the answer."""

    def ask(self, patience_s: float) -> str:
        """Say where the call is, within so many seconds."""
        raise NotImplementedError


class Site(NamedTuple):
    """A place in the code, not yet looked up: a frame finds its line slowly."""

    code: CodeType
    instruction: int

    def __str__(self) -> str:
        for first, end, line in self.code.co_lines():
            if first <= self.instruction < end:
                return f"{self.code.co_filename}:{line}"
        return self.code.co_filename


def call_site() -> str:
    """``file:line`` of the innermost frame outside this package."""
    return str(find_site())


def find_site() -> Site:
    """The innermost frame outside this package."""
    return Site(*find_place(2))


def find_place(depth: int) -> tuple[CodeType, int]:
    """The same as a plain tuple, which takes a third of the time to make.

    Args:
        depth: How many frames are known to be inside, this one included.
    """
    # Not inspect.stack(): that reads source files.
    try:
        frame = sys._getframe(depth)  # noqa: SLF001
    except ValueError:  # none is outside: a thread was started with the function itself
        frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_code.co_filename.startswith(_HERE):
        outer = frame.f_back  # makes an object, so only where it is wanted
        if outer is None:
            break
        frame = outer
    return frame.f_code, frame.f_lasti


def whereabouts(frame: FrameType) -> str:
    """Where a thread is: the innermost frame that is neither ours nor Python's own."""
    found: FrameType | None = frame
    while found is not None and _is_library(found.f_code.co_filename):
        found = found.f_back
    code = (found or frame).f_code
    return f"{Site(code, (found or frame).f_lasti)} in {code.co_qualname}"


def _is_library(file: str) -> bool:
    is_pythons = file.startswith((_PYTHONS, "<frozen ")) and "-packages" not in file
    return is_pythons or file.startswith(_HERE)


def function_name(function: object) -> str:
    """A function's qualified name, or what else describes it."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else repr(function)
