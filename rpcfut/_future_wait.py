"""Blocking and awaiting: how a thread or a task waits until futures are done."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from rpcfut import _callbacks
from rpcfut._errors import DeadlockError, StreamContextError
from rpcfut._future_core import FutureCore, now_s
from rpcfut._future_explain import SHORT_PATIENCE_S, explain, find_deadlock
from rpcfut._interrupts import may_read, wait_in
from rpcfut._pool import current_pool
from rpcfut._streams import seam_of, used_devices
from rpcfut_transport import Waiter

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from rpcfut._devices import Device
    from rpcfut._future_core import Where
    from rpcfut_transport import Inbox

F = TypeVar("F", bound=FutureCore[Any])
_MAX_WAIT_S = threading.TIMEOUT_MAX


def block(future: FutureCore[Any], timeout: float | None) -> None:
    """Block the calling thread until a future is done.

    Raises:
        TimeoutError: When it is not in time; the message says what it waits for.
        DeadlockError: When it never could be, because of what runs on this thread.
        PoolExhaustedError: When called on a pool thread and no other may start.
    """
    if timeout is None and _callbacks.is_inside_task():
        _refuse_deadlock((future,))
    inbox = future._call.inbox if future._call is not None else None
    waiter = _waiter_for(inbox)
    try:  # from here on an interrupt leaves no hook behind
        future._add_hook(waiter.finish)
        block_here(waiter, inbox, timeout)
    finally:
        if not waiter.is_done:
            future._drop_hook(waiter.finish)
    if not waiter.is_done:
        raise TimeoutError(
            f"not done after {timeout} s: {explain(future, SHORT_PATIENCE_S)}"
        )


def block_here(waiter: Waiter, inbox: Inbox | None, timeout: float | None) -> None:
    """Block the calling thread, which made the waiter, until that is done.

    Raises:
        DeadlockError: When nothing may block on this thread.
        PoolExhaustedError: When called on a pool thread and no other may start.
    """
    seconds = None if timeout is None else max(0.0, min(timeout, _MAX_WAIT_S))
    pool = current_pool()
    _callbacks.about_to_block()
    if pool is None:
        _wait(waiter, inbox, seconds)
    else:
        with pool.blocking():
            _wait(waiter, inbox, seconds)


def _wait(waiter: Waiter, inbox: Inbox | None, seconds: float | None) -> None:
    """Wait for a waiter of this thread, by reading the inbox if it may."""
    if inbox is not None and not waiter.is_done and may_read():
        wait_in(inbox, waiter, seconds)
    else:
        waiter.block(-1.0 if seconds is None else seconds)


def _waiter_for(inbox: Inbox | None) -> Waiter:
    return Waiter(_nothing) if inbox is None else inbox.waiter()


def _nothing() -> None:
    """Wakes nobody: who waits for this future reads no inbox."""


def each_done(futures: Iterable[F], timeout: float | None) -> Generator[F, None, None]:
    """Give futures as they get done, on the calling thread, each once.

    Args:
        futures: The futures, without repeats.
        timeout: Seconds for all of them, counted from the first `next`.

    Raises:
        TimeoutError: When one is not done in time; the message says what it waits for.
        DeadlockError: When one never could be, because of what runs on this thread.
        PoolExhaustedError: When called on a pool thread and no other may start.
    """
    deadline_s = None if timeout is None else now_s() + timeout
    arrivals = _Arrivals()
    pending = dict.fromkeys(futures)
    try:
        for future in pending:
            future._add_hook(arrivals.add)
        while pending:
            if not arrivals.done:
                if timeout is None and _callbacks.is_inside_task():
                    _refuse_deadlock(tuple(pending))
                arrivals.wait(pending, deadline_s, timeout)
            done: F = arrivals.done.popleft()
            del pending[done]
            yield done
    finally:
        for future in pending:
            future._drop_hook(arrivals.add)


class _Arrivals:
    """The done ones of some futures, in the order in which they got done."""

    def __init__(self) -> None:
        self.done: deque[Any] = deque()
        self._waiter: Waiter | None = None

    def add(self, future: FutureCore[Any], _where: Where) -> None:
        """Add a future. Any thread."""
        self.done.append(future)
        waiter = self._waiter
        if waiter is not None:
            waiter.finish()

    def wait(
        self,
        pending: Iterable[FutureCore[Any]],
        deadline_s: float | None,
        timeout: float | None,
    ) -> None:
        """Block until one has arrived."""
        first = next(iter(pending))
        inbox = first._call.inbox if first._call is not None else None
        left_s = None
        if deadline_s is not None:
            left_s = max(0.0, min(deadline_s - now_s(), _MAX_WAIT_S))
        pool = current_pool()
        _callbacks.about_to_block()
        self._waiter = waiter = _waiter_for(inbox)
        try:
            with pool.blocking() if pool is not None else nullcontext():
                if not self.done:
                    _wait(waiter, inbox, left_s)
        finally:
            self._waiter = None
        if not self.done:
            count = sum(1 for _ in pending)
            raise TimeoutError(
                f"{count} futures not done after {timeout} s, the first of them: "
                f"{explain(first, SHORT_PATIENCE_S)}"
            )


def _refuse_deadlock(futures: Sequence[FutureCore[Any]]) -> None:
    """Refuse a wait for the first of `futures` to be done, if none could be."""
    why = None
    for future in futures:
        why = find_deadlock(future)
        if why is None:
            return
    raise DeadlockError(
        f"this wait for {futures[-1]!r} could never end: {why}; return the future from "
        "the callback instead of waiting for it (its outcome then becomes the "
        "child's), or await it in a then_async() callback"
    )


def current_streams() -> list[tuple[Device, Any]]:
    """The calling thread's current streams on the used devices."""
    devices = used_devices()
    return [(d, seam_of(d).current_stream(d)) for d in devices] if devices else []


def check_streams(before: Iterable[tuple[Device, Any]]) -> None:
    """Check that a coroutine goes on under the streams that it stopped with (STR-2).

    Raises:
        StreamContextError: When one is another now.
    """
    for device, stream in before:
        now = seam_of(device).current_stream(device)
        if now != stream:
            raise StreamContextError(
                f"the current stream of {device} was {stream!r} when this coroutine "
                f"stopped at an await, and is {now!r} now that it goes on: a stream "
                "context spans an await, here or in another task of this thread, and "
                "leaks from task to task; leave it before every await and enter it "
                "again after"
            )
