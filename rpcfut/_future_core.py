"""The state of a future, and what follows from completing it.

Theory of operation. All state changes happen under the future's lock. What follows from
them (hooks, waiters of `concurrent.futures`, callbacks) happens after it was let go.

*Hooks* are the library's own: short functions that are called once, on the completing
thread. *Callbacks* are the user's. They are queued, and one thread at a time drains the
queue, so that callbacks of one future run one at a time and in order (FUT-3); where
that thread is, `_callbacks` knows. A callback that must wait for its lane ends the
draining, and goes on with it once it had its turn.

The functions at the end are for the library's other modules; users see only the methods
of `Future`.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rpcfut import _callbacks
from rpcfut._completion import Completion
from rpcfut._outcome import Cancelled, Failure, Outcome, Value, failure_of
from rpcfut._pool import current_pool
from rpcfut._streams import wait_marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rpcfut._call_info import CallInfo
    from rpcfut._callback import Callback
    from rpcfut._devices import Device
    from rpcfut._extract import DataRef
    from rpcfut._streams import Mark

T = TypeVar("T")
Where = Callable[[Callable[[], None]], None]  # _callbacks.run_here and its siblings
Hook = Callable[["FutureCore[Any]", Where], None]

_MAX_WAIT_S = threading.TIMEOUT_MAX
_FINISHED = "FINISHED"  # the states that concurrent.futures looks for
_CANCELLED = "CANCELLED_AND_NOTIFIED"
_PENDING = "PENDING"


class FutureCore(concurrent.futures.Future[T], Generic[T]):
    """What `Future` is made of; that class adds what users call."""

    # Class-level defaults: a future that is only completed never sets most of these.
    _outcome: Outcome[T] | None = None
    _marks: Sequence[Mark] = ()
    _refs: Sequence[DataRef] = ()
    _hooks: list[Hook] | None = None
    _queue: deque[Callback] | None = None
    _is_draining = False
    _devices: frozenset[Device] | None = None
    _about: CallInfo | None = None
    _canceller: Callable[[], None] | None = None
    _foreign_waiters: list[Any] | None = None
    _foreign_condition: threading.Condition | None = None

    def __init__(self) -> None:
        # The base class's constructor would make a condition: 1.6 us.
        self._lock = threading.Lock()

    # ---- completing -------------------------------------------------------------

    def _complete(self, completion: Completion, where: Where) -> bool:
        """Move to the end state, wake everybody, have the callbacks run at `where`.

        Returns:
            False when the future is done already; nothing changes (FUT-1).
        """
        with self._lock:
            if self._outcome is not None:
                return False
            self._marks, self._refs = completion.marks, completion.refs
            self._outcome = completion.outcome
            hooks, self._hooks = self._hooks, None
            foreign, self._foreign_waiters = self._foreign_waiters, None
            queue = self._queue
            if queue:
                self._is_draining = True
                self._take_tickets_locked(queue)
        for hook in hooks or ():
            hook(self, where)
        for waiter in foreign or ():
            _tell(waiter, self)
        if queue:
            # A user's set_result runs what was registered before it, not more.
            batch = len(queue) if where is _callbacks.run_here else None
            where(lambda: self._drain(batch))
        return True

    def _follow(self, completion: Completion) -> None:
        """Complete; if the value is a future, when and as that one does (FUT-4)."""
        outcome = completion.outcome
        if not (isinstance(outcome, Value) and isinstance(outcome.value, FutureCore)):
            self._complete(completion, _callbacks.run_after)
            return
        given = completion.marks

        def on_done(inner: FutureCore[Any], where: Where) -> None:
            done = completion_of_done(inner)
            self._complete(done._replace(marks=(*done.marks, *given)), where)

        outcome.value._add_hook(on_done)

    # ---- callbacks --------------------------------------------------------------

    def _enqueue(self, callback: Callback) -> None:
        """Queue a callback, and have the queue drained if the future is done."""
        with self._lock:
            if self._queue is None:
                self._queue = deque()
            self._queue.append(callback)
            if self._outcome is None:
                return
            self._take_tickets_locked((callback,))
            if self._is_draining:
                return
            self._is_draining = True
        _callbacks.run_on_pool(self._drain)

    def _take_tickets_locked(self, callbacks: Iterable[Callback]) -> None:
        with_streams = [c for c in callbacks if c.streams is not None]
        if with_streams:
            lanes = _callbacks.runtime().lanes
            tickets = lanes.take([c.lane_keys for c in with_streams])
            for callback, ticket in zip(with_streams, tickets, strict=True):
                callback.ticket = ticket

    def _drain(self, batch: int | None = None) -> None:
        """Run callbacks, in order, until none is left or one must wait for its lane.

        Args:
            batch: How many to run here at most; the pool runs the rest.
        """
        while True:
            with self._lock:
                queue = self._queue
                if not queue:
                    self._queue, self._is_draining = None, False
                    return
                callback = None if batch == 0 else queue.popleft()
            if callback is None:
                _callbacks.run_on_pool(self._drain)
                return
            if callback.ticket is not None and not self._has_lane(callback):
                return
            self._run(callback)
            batch = None if batch is None else batch - 1

    def _has_lane(self, callback: Callback) -> bool:
        """Whether the callback may run now; if not, it goes on from here by itself."""

        def resume() -> None:
            self._run(callback)
            self._drain()

        assert callback.ticket is not None
        return _callbacks.runtime().lanes.start(
            callback.ticket, lambda: _callbacks.run_on_pool(resume)
        )

    def _run(self, callback: Callback) -> None:
        assert self._outcome is not None
        try:
            completion = callback.invoke(
                self, self._outcome, self._marks, self._refs, self._about
            )
        except BaseException as error:  # noqa: BLE001 - a device failed; not lost
            completion = Completion(failure_of(error))
        child: FutureCore[Any] | None = callback.child
        if child is not None:
            child._follow(completion)
        if callback.ticket is not None:
            _callbacks.runtime().lanes.finish(callback.ticket)

    # ---- waiting and reading ----------------------------------------------------

    def _add_hook(self, hook: Hook) -> None:
        """Have `hook` called once, when done; it must be short and must not block."""
        with self._lock:
            if self._outcome is None:
                if self._hooks is None:
                    self._hooks = []
                self._hooks.append(hook)
                return
        hook(self, _callbacks.run_after)

    def _drop_hook(self, hook: Hook) -> None:
        """Forget a hook, so that waits that time out again and again leave nothing."""
        with self._lock:
            if self._hooks is not None and hook in self._hooks:
                self._hooks.remove(hook)

    def _block(self, timeout: float | None) -> bool:
        """Block the calling thread until done; whether it is."""
        gate = threading.Lock()
        gate.acquire()

        def open_gate(_future: FutureCore[Any], _where: Where) -> None:
            gate.release()

        seconds = -1 if timeout is None else max(0.0, min(timeout, _MAX_WAIT_S))
        pool = current_pool()
        self._add_hook(open_gate)
        try:
            _callbacks.about_to_block()
            if pool is None:
                return gate.acquire(timeout=seconds)
            with pool.blocking():
                return gate.acquire(timeout=seconds)
        finally:
            self._drop_hook(open_gate)

    def _read(self) -> T:
        if self._marks:
            wait_marks(self._marks, self._refs)
        outcome = self._outcome
        if isinstance(outcome, Value):
            return outcome.value
        assert outcome is not None
        return outcome.reraise()

    # ---- what concurrent.futures looks at ---------------------------------------

    @property
    def _state(self) -> str:  # type: ignore[override]  # an attribute over there
        if self._outcome is None:
            return _PENDING
        return _CANCELLED if isinstance(self._outcome, Cancelled) else _FINISHED

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # as above
        condition = self._foreign_condition
        if condition is None:
            # Two threads may make one each; both are over the one lock that counts,
            # and nobody waits on a condition of ours.
            condition = self._foreign_condition = threading.Condition(self._lock)
        return condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # as above
        if self._foreign_waiters is None:
            self._foreign_waiters = []
        return self._foreign_waiters


def complete(future: FutureCore[Any], completion: Completion, where: Where) -> bool:
    """Complete a future from the library's side; False if it is done already.

    Args:
        future: The future.
        completion: How it ends.
        where: Where its callbacks run: `_callbacks.run_on_pool` or `run_after`.
    """
    return future._complete(completion, where)


def completion_of_done(future: FutureCore[Any]) -> Completion:
    """How a done future ended, to complete another one alike."""
    assert future._outcome is not None
    return Completion(future._outcome, tuple(future._marks), future._refs)


def add_hook(future: FutureCore[Any], hook: Hook) -> None:
    """Have `hook` called once, on the completing thread; short, must not block."""
    future._add_hook(hook)


def bind_call(
    future: FutureCore[Any], about: CallInfo, canceller: Callable[[], None]
) -> None:
    """Tell a future which call it belongs to, and what ends that early."""
    future._about = about
    future._canceller = canceller


def _tell(waiter: Any, future: FutureCore[Any]) -> None:
    """Tell a waiter of `concurrent.futures` how the future ended."""
    if isinstance(future._outcome, Failure):
        waiter.add_exception(future)
    elif isinstance(future._outcome, Cancelled):
        waiter.add_cancelled(future)
    else:
        waiter.add_result(future)
