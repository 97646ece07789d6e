"""The state of a future, and what follows from completing it.

Theory of operation. All state changes happen under the future's lock. What follows from
them (hooks, waiters of `concurrent.futures`, callbacks) happens after it was let go.

*Hooks* are the library's own: short functions that are called once, on the completing
thread. *Followers* are futures that complete when this one does, before any callback
runs: children whose callback returned this future, and futures of many futures. They
are completed in a loop. *Callbacks* are the user's. They are queued, and one
thread at a time drains the queue, so that callbacks of one future run one at a time and
in order (FUT-3); where that thread is, `_callbacks` knows. Each callback is a task of
its own: what its child starts runs first, then the next one. A callback that must wait
for its lane ends the draining, and goes on with it once it had its turn.

The functions at the end are for the library's other modules; users see only the methods
of `Future`.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rpcfut import _callbacks
from rpcfut._capture import refuse_capture
from rpcfut._completion import Completion
from rpcfut._devices import Device, parse_devices
from rpcfut._errors import InvalidStateError
from rpcfut._future_foreign import ForeignFace
from rpcfut._outcome import Failure, Value, failure_of
from rpcfut._streams import pinned_marks, used_devices, wait_marks
from rpcfut._unobserved import QUIET, Unseen
from rpcfut_transport import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType

    import torch

    from rpcfut._call_info import CallInfo, PendingCall
    from rpcfut._callback import Callback
    from rpcfut._extract import DataRef
    from rpcfut._streams import Mark

T = TypeVar("T")
Where = Callable[..., None]  # _callbacks.run_here and its siblings: where(*tasks)
Hook = Callable[["FutureCore[Any]", Where], None]
Follow = Callable[["FutureCore[Any]"], Completion | None]  # given the done leader

_ALL = sys.maxsize  # callbacks
now_s = MonotonicClock().now_s


# A callback that runs: which, the identity of the thread that runs it (None while it
# only waits for its lane), and since when. A plain tuple: each callback makes one.
Running = tuple["Callback", int | None, float]


class FutureCore(ForeignFace[T], Generic[T]):
    """What `Future` is made of; that class adds what users call."""

    _since_s: float
    _made_at: tuple[CodeType, int]
    _marks: Sequence[Mark]
    _refs: Sequence[DataRef]
    _hooks: list[Hook] | None
    _followers: list[tuple[FutureCore[Any], Follow]] | None
    _queue: deque[Callback] | None
    # Class-level defaults: most futures never set these, nor look at them.
    _is_draining = False
    # How many callbacks may still run on this thread; the pool runs the rest, or else
    # someone who keeps registering would hold the user's thread for ever.
    _turns = 0
    _running: Running | None = None
    _has_lanes = False  # whether a callback was given a stream
    _devices: frozenset[Device] | None = None
    _about: CallInfo | None = None
    _canceller: Callable[[], None] | None = None
    _call: PendingCall | None = None  # whose answer completes it
    _is_watched = False  # whether somebody said so, by `watch`
    _unseen: Unseen | None = None
    # What it waits for, for explanations: a parent or leader, or any number of members.
    # Parents are not kept alive by their children.
    _leader: weakref.ref[FutureCore[Any]] | None = None
    _members: Callable[[], Sequence[FutureCore[Any]]] | None = None
    _work: str | None = None  # what the library does for it, in words

    def __init__(
        self, *, devices: Iterable[str | int | torch.device] | None = None
    ) -> None:
        # The base class's constructor would make a condition: 1.6 us.
        frame = sys._getframe(1)  # that of a subclass's constructor, if it has one
        self._begin((frame.f_code, frame.f_lasti))
        self._devices = None if devices is None else parse_devices(devices)

    def _begin(self, made_at: tuple[CodeType, int]) -> None:
        # What each future looks at is set here: a default of the class is read slower.
        self._lock = threading.Lock()
        self._since_s = now_s()
        self._made_at = made_at
        self._outcome = None
        self._marks = self._refs = ()
        self._hooks = self._followers = self._queue = self._foreign_waiters = None

    # ---- completing -------------------------------------------------------------

    def _complete(self, completion: Completion, where: Where) -> bool:
        """Move to the end state, wake everybody, have the callbacks run at `where`.

        Returns:
            False when the future is done already; nothing changes (FUT-1).
        """
        count = self._settle(completion, where)
        if count is None:
            return False
        if self._followers is not None:
            self._complete_followers(count, where)
        elif count:
            self._start_drain(where)
        return True

    def _start_drain(self, where: Where) -> None:
        """Have callbacks run at `where`; on the pool once pinned memory is filled."""
        if self._marks:
            later = functools.partial(_callbacks.run_on_pool, self._drain)
            self._when_filled(functools.partial(where, self._drain), later)
        else:
            where(self._drain)

    def _when_filled(self, now: Callable[[], None], later: Callable[[], None]) -> None:
        """Run `now`, or `later` once pinned memory of the value is filled.

        What reads it runs on the host; the device watcher waits for it, and no thread
        that serves others (STR-2).
        """
        marks = pinned_marks(self._marks, self._refs)
        if marks:
            watcher = _callbacks.runtime().watcher
            watcher.when_passed(marks, later, lambda _error: later())
        else:
            now()

    def _settle(self, completion: Completion, where: Where) -> int | None:
        """Move to the end state and wake everybody, but run no callback yet.

        Returns:
            How many callbacks there are to run; None when the future is done already.
        """
        count = 0
        outcome, marks, refs = completion
        unseen = self._unseen_error(outcome) if type(outcome) is Failure else None
        with self._lock:
            if self._outcome is not None:
                return None
            # The outcome last: who sees it takes no lock before reading the others.
            self._marks, self._refs = marks, refs
            if unseen is not None and not self._is_looked_at_locked():
                self._unseen = unseen
                unseen.is_seen = False
            self._outcome = outcome
            hooks, self._hooks = self._hooks, None
            # Waiters take themselves off the list, so they must stay on it.
            foreign = self._foreign_waiters and self._foreign_waiters.copy()
            if self._queue is not None:
                count = self._turns = len(self._queue)
                self._is_draining = True
                if self._has_lanes:
                    self._take_tickets_locked(self._queue)
        if hooks or foreign:
            self._wake(hooks or (), foreign or (), where)
        return count

    def _wake(
        self, hooks: Iterable[Hook], foreign: Iterable[Any], where: Where
    ) -> None:
        for hook in hooks:
            hook(self, where)
        for waiter in foreign:
            self._tell(waiter)

    def _unseen_error(self, failure: Failure) -> Unseen | None:
        if isinstance(failure.error, QUIET):
            return None
        return Unseen(failure.error, self._made_at, self._about)

    def _is_looked_at_locked(self) -> bool:
        """Whether someone will see how it ends: a waiter, a callback, a follower."""
        return bool(self._is_watched or self._hooks or self._queue or self._followers)

    def _look(self) -> None:
        """Note that somebody has seen the error (FUT-6)."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen.is_seen = True

    def _complete_followers(self, count: int, where: Where) -> None:
        """Complete all that follow this future, and what follows them, then run.

        A loop, since an asynchronous loop makes a chain of any length. No callback runs
        before the last follower is done: it may wait for one.
        """
        drains = [self._drain] if count else []
        leaders: list[FutureCore[Any]] = [self]
        for leader in leaders:
            followers, leader._followers = leader._followers, None
            for follower, follow in followers or ():
                completion = follow(leader)
                if completion is None:
                    continue
                count_there = follower._settle(completion, where)
                if count_there is not None:
                    leaders.append(follower)
                if count_there:
                    drains.append(follower._drain)
        if drains:
            where(*drains)

    def _follow(self, completion: Completion) -> None:
        """Complete; if the value is a future, when and as that one does (FUT-4)."""
        outcome = completion[0]
        value = outcome.value if type(outcome) is Value else None
        if not isinstance(value, FutureCore):
            self._complete(completion, _callbacks.run_after)
            return
        if value is self:
            error = InvalidStateError(
                "a callback returned the future of its own result, which would wait "
                f"for itself: {self!r}"
            )
            self._complete(Completion(failure_of(error)), _callbacks.run_after)
            return
        self._leader = weakref.ref(value)
        marks = completion.marks
        value._add_follower(self, lambda leader: completion_of_done(leader, marks))

    def _add_follower(self, follower: FutureCore[Any], follow: Follow) -> None:
        """Complete another future when this one is done.

        Args:
            follower: The other one.
            follow: Called once this future is done; says how the other one completes,
                None if not yet. Short, and must not block.
        """
        with self._lock:
            if self._outcome is None:
                if self._followers is None:
                    self._followers = []
                self._followers.append((follower, follow))
                return
        completion = follow(self)
        if completion is not None:
            follower._complete(completion, _callbacks.run_after)

    # ---- callbacks --------------------------------------------------------------

    def _enqueue(self, callback: Callback) -> None:
        """Queue a callback, and have the queue drained if the future is done."""
        with self._lock:
            if self._queue is None:
                self._queue = deque()
            self._queue.append(callback)
            if callback.streams is not None:
                self._has_lanes = True
            if self._outcome is None:
                return
            if self._unseen is not None:
                self._look()
            if self._has_lanes:
                self._take_tickets_locked((callback,))
            if self._is_draining:
                return
            self._is_draining = True
            self._turns = _ALL
        self._start_drain(_callbacks.run_on_pool)

    def _take_tickets_locked(self, callbacks: Iterable[Callback]) -> None:
        with_streams = [c for c in callbacks if c.streams is not None]
        lanes = _callbacks.runtime().lanes
        tickets = lanes.take([c.lane_keys for c in with_streams])
        for callback, ticket in zip(with_streams, tickets, strict=True):
            callback.ticket = ticket

    def _drain(self) -> None:
        """Run the next callback and put off the others.

        Only called when there is one and `_is_draining` is set.
        """
        assert self._queue is not None
        if self._turns == 0:
            self._turns = _ALL
            _callbacks.run_on_pool(self._drain)
            return
        callback = self._queue.popleft()
        if callback.ticket is None or self._has_lane(callback):
            self._run(callback)

    def _has_lane(self, callback: Callback) -> bool:
        """Whether the callback may run now; if not, it goes on from here by itself."""

        def resume() -> None:
            self._turns = _ALL
            self._run(callback)

        assert callback.ticket is not None
        self._running = (callback, None, now_s())
        return _callbacks.runtime().lanes.start(
            callback.ticket, lambda: _callbacks.run_on_pool(resume)
        )

    def _run(self, callback: Callback) -> None:
        assert self._outcome is not None
        thread = threading.get_ident()
        self._running = (callback, thread, now_s())
        if callback.ticket is not None:
            callback.ticket.runner = thread
        try:
            completion = callback.invoke(self, self._outcome, self._marks, self._refs)
        except BaseException as error:  # noqa: BLE001 - a device failed; not lost
            _callbacks.note_interrupt(error)
            completion = Completion(failure_of(error))
        with self._lock:
            self._running = None
            is_last = not self._queue
            if is_last:
                self._queue, self._is_draining = None, False
        if not is_last:
            # Put off before the child completes, so that what the child starts comes
            # first, as if it were nested: a later callback may block for it.
            self._turns -= 1
            _callbacks.run_after(self._drain)
        try:
            if callback.child is not None:
                callback.child._follow(completion)
        finally:
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
        self._look()
        hook(self, _callbacks.run_after)

    def _drop_hook(self, hook: Hook) -> None:
        """Forget a hook, so that waits that time out again and again leave nothing."""
        with self._lock:
            if self._hooks is not None and hook in self._hooks:
                self._hooks.remove(hook)

    def _read(self) -> T:
        if self._marks or self._refs:  # without marks the allocator is still told
            refuse_capture(used_devices(), "the value of a future was read")
            wait_marks(self._marks, self._refs)
        outcome = self._outcome
        if isinstance(outcome, Value):
            return outcome.value
        assert outcome is not None
        self._look()
        return outcome.reraise()


def complete(future: FutureCore[Any], completion: Completion, where: Where) -> bool:
    """Complete a future from the library's side; False if it is done already.

    Args:
        future: The future.
        completion: How it ends.
        where: Where its callbacks run: `_callbacks.run_on_pool` or `run_after`.
    """
    return future._complete(completion, where)


def completion_of_done(
    future: FutureCore[Any], given: tuple[Mark, ...] = ()
) -> Completion:
    """How a done future ended, to complete another one alike.

    Args:
        future: The future.
        given: Further marks, for the other one only.
    """
    assert future._outcome is not None
    future._look()
    return Completion(future._outcome, (*future._marks, *given), future._refs)


def add_hook(future: FutureCore[Any], hook: Hook) -> None:
    """Have `hook` called once, on the completing thread; short, must not block."""
    future._add_hook(hook)


def watch(future: FutureCore[Any]) -> None:
    """Note that somebody takes care of the error that the future may fail with."""
    future._is_watched = True
    future._look()


def add_follower(
    future: FutureCore[Any], follower: FutureCore[Any], follow: Follow
) -> None:
    """Complete `follower` when `future` is done, as `follow` says."""
    future._add_follower(follower, follow)
