"""How a future ended: with a value, with an error, or cancelled.

An error keeps the traceback it came with. Each raise starts from that traceback again
and puts the context back afterwards, so that raising the same error a thousand times
neither grows it nor changes its `__context__` (FUT-5).
"""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


@dataclass(slots=True)  # frozen would make it twice as slow to make
class Value(Generic[T]):
    """Ended with a value. Never changed."""

    value: T


@dataclass(frozen=True, slots=True)
class Failure:
    """Ended with an error; traceback and context are those it had then."""

    error: BaseException
    traceback: TracebackType | None
    context: BaseException | None

    def reraise(self) -> NoReturn:
        """Raise the error as it was when the future failed."""
        try:
            raise self.error.with_traceback(self.traceback)
        finally:
            # Python sets __context__ to whatever the caller is handling just now. It
            # may have done so for another thread too: what it is now says nothing.
            self.error.__context__ = self.context
            del self


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Ended because somebody cancelled it."""

    reason: str = "the future was cancelled"

    def reraise(self) -> NoReturn:
        """Raise a fresh CancelledError."""
        raise concurrent.futures.CancelledError(self.reason)


Outcome = Value[T] | Failure | Cancelled


def failure_of(error: BaseException, known: Outcome[object] | None = None) -> Failure:
    """Make the outcome for an error that was raised or given.

    Args:
        error: The error. StopIteration is wrapped: raised out of ``__await__`` it would
            end the awaiting coroutine as if it had returned.
        known: The outcome that the error may come from. When a callback lets its
            parent's error pass, the parent's traceback is kept: a chain of a thousand
            callbacks does not add a thousand frames.
    """
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        wrapper = RuntimeError(f"{type(error).__name__} was raised: {error}")
        wrapper.__cause__ = error
        return Failure(wrapper, None, None)
    if isinstance(known, Failure) and known.error is error:
        return known
    return Failure(error, error.__traceback__, error.__context__)
