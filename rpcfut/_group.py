"""Many futures: wait for all, for each as it ends, or make one future of them.

Nothing here runs a callback on the thread that waits, and nothing reads a member before
its reader does: streams wait where and when a value is read (STR-2).
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from rpcfut._call_info import find_site
from rpcfut._completion import Completion
from rpcfut._future import Future
from rpcfut._future_binding import bind_members
from rpcfut._future_core import add_follower, completion_of_done, watch
from rpcfut._future_wait import each_done
from rpcfut._outcome import Cancelled, Failure, Outcome, Value
from rpcfut._registry import register_builtin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rpcfut._future_core import FutureCore
    from rpcfut._streams import Mark

T = TypeVar("T")


def collect_all(futures: Iterable[Future[T]]) -> Future[list[Future[T]]]:
    """Return a future of the list of these futures, done once all of them are.

    It has a value also when some of them failed or were cancelled: read them to see.
    Whoever reads a member makes its current streams wait for that one's device work.

    Args:
        futures: The futures, in the order of the list; the same one may come twice.

    Raises:
        TypeError: When one of them is no future; the message has its index.
    """
    members = _checked(futures, "collect_all")
    return _combined(members, lambda: Completion(Value(members)))


def gather_outcomes(futures: Iterable[Future[T]]) -> Future[list[Outcome[T]]]:
    """Return a future of how all of these futures ended.

    Args:
        futures: The futures, in the order of the list; the same one may come twice.

    Returns:
        A future of one `Value`, `Failure` or `Cancelled` each, for ``match``. Reading
        it makes the current streams wait for the device work behind all values.

    Raises:
        TypeError: When one of them is no future; the message has its index.
    """
    members = _checked(futures, "gather_outcomes")

    def complete() -> Completion:
        ends = {member: completion_of_done(member) for member in members}
        marks: list[Mark] = []
        refs: list[Any] = []
        for end in ends.values():
            marks += end.marks
            refs += end.refs
        outcomes = [ends[member].outcome for member in members]
        return Completion(Value(outcomes), tuple(marks), refs)

    return _combined(members, complete)


def wait_all(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Wait for all of these futures and return the list of their values.

    Raises at the first failure, at once; the others go on, and count as looked at.

    Args:
        futures: The futures, in the order of the list; the same one may come twice.
        timeout: Seconds to wait for all of them; None waits for ever.

    Returns:
        The values. The calling thread's current streams wait for the device work
        behind them.

    Raises:
        TypeError: When one of them is no future; the message has its index.
        TimeoutError: When one is not done in time; all stay usable.
        concurrent.futures.CancelledError: When one was cancelled.
        BaseException: The error that one failed with.
    """
    members = _checked(futures, "wait_all")
    for member in members:
        watch(member)
    with closing(each_done(members, timeout)) as ended:
        for member in ended:
            if not isinstance(completion_of_done(member).outcome, Value):
                member.value()  # raises, in this frame
    return [member.value() for member in members]


def as_completed(
    futures: Iterable[Future[T]], timeout: float | None = None
) -> Iterator[Future[T]]:
    """Give these futures back as they get done, each once.

    Args:
        futures: The futures.
        timeout: Seconds for all of them, counted from the first step; None waits for
            ever.

    Returns:
        An iterator. Each step blocks the calling thread until another one is done.

    Raises:
        TypeError: At once, when one of them is no future; the message has its index.
        TimeoutError: By a step, when the next one is not done in time.
    """
    members = _checked(futures, "as_completed")
    return each_done(members, timeout)


class _Countdown:
    """Counts members down, and keeps them until the last one is done. Any thread."""

    def __init__(
        self, members: Iterable[FutureCore[Any]], complete: Callable[[], Completion]
    ) -> None:
        self._lock = threading.Lock()
        self._members = tuple(dict.fromkeys(members))
        self._left = len(self._members)
        self._complete: Callable[[], Completion] | None = complete

    def members(self) -> tuple[FutureCore[Any], ...]:
        """Those that it waits for; none once all are done."""
        return self._members

    def follow(self, _member: FutureCore[Any]) -> Completion | None:
        """Note that one is done; says how the result ends if it was the last."""
        with self._lock:
            self._left -= 1
            if self._left:
                return None
        complete, self._complete, self._members = self._complete, None, ()
        assert complete is not None
        return complete()


def _combined(
    members: list[Future[T]], complete: Callable[[], Completion]
) -> Future[Any]:
    """A future that is completed by the last of `members`."""
    result: Future[Any] = Future()
    countdown = _Countdown(members, complete)
    bind_members(result, find_site(), countdown.members)
    for member in countdown.members():
        watch(member)
        add_follower(member, result, countdown.follow)
    if not members:
        result.set_result([])
    return result


def _checked(futures: Iterable[Future[T]], name: str) -> list[Future[T]]:
    if isinstance(futures, Future):
        raise TypeError(f"{name} wants many futures, got one: write {name}([future])")
    found = list(futures)
    for index, future in enumerate(found):
        if not isinstance(future, Future):
            raise TypeError(
                f"{name} wants futures of this library, got {future!r} at index {index}"
            )
    return found


# What gather_outcomes returns may be passed on, by a callback for one.
register_builtin(Value, lambda outcome: (outcome.value,))
register_builtin(Failure, lambda outcome: (outcome.error,))
register_builtin(Cancelled)
