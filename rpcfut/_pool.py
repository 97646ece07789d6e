"""A thread pool that grows when its threads wait.

Theory of operation: a task goes to the thread that went idle last; if none is idle and
fewer than `core_threads` threads can run, a new one starts; otherwise the task queues.
A thread that is about to block in a wait says so (`blocking`); it no longer counts as
able to run, so that what it waits for always finds a thread (RPC-6). At `max_threads`
such a wait is refused at once: it could only end by luck. Threads may also block where
nobody tells the pool, on a user's lock for one: when tasks wait and none was taken for
a moment, a supervisor starts another thread, also beyond `core_threads`.

A pool is the crew of an inbox, too: one of its threads reads there while nobody waits.
It does not count while it reads, and counts while it runs what it read.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from rpcfut._errors import PoolExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

_log = logging.getLogger("rpcfut.pool")
_thread = threading.local()
# Entered around each task, on its thread: for tools whose state is per thread.
_around_tasks: list[Callable[[], AbstractContextManager[object]]] = []

CORE_THREADS = 16
MAX_THREADS = 256
KEEP_ALIVE_S = 10.0
STALL_S = 0.05
STALL_TICKS = 50  # the same, in calls of `relieve`, which come every millisecond


class _Worker:
    """One thread of a pool and the task it was handed while it slept."""

    __slots__ = ("task", "wake")

    def __init__(self) -> None:
        self.task: Callable[[], None] | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class ThreadPool:
    """Runs tasks on daemon threads, the last idle one first. Any thread may call it.

    Args:
        name: Prefix of the threads' names.
        core_threads: How many threads may run at a time; waiting ones not counted.
        max_threads: How many threads there may be, waiting ones included.
        keep_alive_s: How long an idle thread stays, in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        core_threads: int = CORE_THREADS,
        max_threads: int = MAX_THREADS,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        if not 1 <= core_threads <= max_threads:
            raise ValueError(
                "need 1 <= core_threads <= max_threads, "
                f"got {core_threads} and {max_threads}"
            )
        self._name = name
        self._core = core_threads
        self._max = max_threads
        self._keep_alive_s = keep_alive_s
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle: list[_Worker] = []
        self._threads = 0
        self._blocked = 0
        self._numbers = itertools.count(1)
        self._taken = 0
        self._relieved = -1
        self._stuck_ticks = 0
        self._is_supervised = False
        self._is_closed = False

    def __repr__(self) -> str:
        return (
            f"<ThreadPool {self._name!r}: {self._threads} threads, "
            f"{len(self._idle)} idle, {self._blocked} waiting, "
            f"{len(self._tasks)} tasks queued>"
        )

    def submit(self, task: Callable[[], None]) -> None:
        """Have a pool thread run `task`. Does not block; the task must not raise.

        Raises:
            RuntimeError: When the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"pool {self._name!r} is closed")
            if self._idle:
                worker = self._idle.pop()
                worker.task = task
                worker.wake.release()
                return
            self._tasks.append(task)
            start = self._may_start_locked()
            supervise = not start and not self._is_supervised
            self._is_supervised |= supervise
        if start:
            self._start_thread()
        if supervise:
            name = f"{self._name}-supervisor"
            threading.Thread(target=self._supervise, name=name, daemon=True).start()

    def _supervise(self) -> None:
        """Start a thread whenever tasks wait and none was taken for a while."""
        pause = threading.Event()  # never set
        taken = -1
        while True:
            pause.wait(STALL_S)
            with self._lock:
                if not self._tasks:
                    self._is_supervised = False
                    return
                start = self._taken == taken and self._threads < self._max
                taken = self._taken
                self._threads += start
            if start:
                self._start_thread()

    def start_reader(self, read: Callable[[], None]) -> bool:
        """Have a thread run `read`, which does not count as a task; False if none can.

        It may call `enter` and `leave`. Does not block.
        """

        def run() -> None:
            with self._lock:
                self._threads -= 1
            try:
                read()
            finally:
                with self._lock:
                    self._threads += 1

        with self._lock:
            if self._is_closed:
                return False
            if self._idle:
                worker = self._idle.pop()
                worker.task = run
                worker.wake.release()
                return True
            if self._threads >= self._max:
                return False
            self._threads += 1
        self._start_thread(run)
        return True

    def enter(self) -> bool:
        """Count the calling reader as running a task; False when it must not run one.

        That is when tasks wait for a thread, or as many run as may.
        """
        with self._lock:
            running = self._threads - self._blocked - len(self._idle)
            if self._tasks or self._threads >= self._max or running >= self._core:
                return False
            self._threads += 1
            return True

    def leave(self) -> Callable[[], None] | None:
        """Undo `enter`; or return a task that waited for a thread, to be run first."""
        with self._lock:
            if self._tasks:
                self._taken += 1
                return self._tasks.popleft()
            self._threads -= 1
            return None

    @property
    def has_more(self) -> bool:
        """Whether tasks wait for a thread."""
        return bool(self._tasks)

    def put_off(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Queue tasks for threads that work now; `relieve` sees that others help."""
        with self._lock:
            self._tasks.extend(tasks)

    def relieve(self) -> None:
        """Have another thread help, if tasks wait and none was taken since."""
        if not self._tasks:
            return
        start = False
        with self._lock:
            is_stuck, self._relieved = self._taken == self._relieved, self._taken
            if is_stuck and self._tasks:
                if self._idle:
                    worker = self._idle.pop()
                    worker.task = self._tasks.popleft()
                    self._taken += 1
                    worker.wake.release()
                else:
                    start = self._may_start_locked()
            self._stuck_ticks = self._stuck_ticks + 1 if is_stuck and not start else 0
            # All wait where nobody tells the pool: beyond `core_threads`, as above.
            if self._stuck_ticks >= STALL_TICKS and self._threads < self._max:
                self._stuck_ticks = 0
                self._threads += 1
                start = True
        if start:
            self._start_thread()

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Mark the calling pool thread as waiting, so that another can take its place.

        Raises:
            PoolExhaustedError: When all threads that may exist would be waiting.
        """
        with self._lock:
            if self._threads >= self._max and self._threads - self._blocked <= 1:
                raise PoolExhaustedError(
                    f"{self._blocked} of {self._max} threads of pool {self._name!r} "
                    "are blocked in waits, and one more would leave none to run what "
                    "they wait for; chain with then() or then_async() instead of "
                    "waiting inside a handler or callback, or raise max_threads"
                )
            self._blocked += 1
            start = bool(self._tasks) and self._may_start_locked()
        if start:
            self._start_thread()
        try:
            yield
        finally:
            with self._lock:
                self._blocked -= 1

    def close(self) -> None:
        """Let idle threads end; queued tasks still run. Idempotent, does not block."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.wake.release()

    def _may_start_locked(self) -> bool:
        if self._threads - self._blocked >= self._core or self._threads >= self._max:
            return False
        self._threads += 1
        return True

    def _start_thread(self, first: Callable[[], None] | None = None) -> None:
        name = f"{self._name}-{next(self._numbers)}"
        try:
            threading.Thread(
                target=self._run, args=(first,), name=name, daemon=True
            ).start()
        except RuntimeError:  # the system has no more threads
            with self._lock:
                self._threads -= 1
            raise

    def _run(self, first: Callable[[], None] | None = None) -> None:
        _thread.pool = self
        worker = _Worker()
        task = first or self._next_task(worker)
        first = None
        while task is not None:
            try:
                if _around_tasks:
                    _run_inside(task)
                else:
                    task()
            except BaseException:  # noqa: BLE001 - logged, see below
                # A task catches what user code raises; this is a fault of ours, and
                # a thread lost to it would be one fewer for everybody.
                _log.exception("a task of pool %s raised", self._name)
            task = None  # do not keep its value alive while idle
            task = self._next_task(worker)

    def _next_task(self, worker: _Worker) -> Callable[[], None] | None:
        with self._lock:
            if self._threads > self._max:  # it read, and others took its place
                self._threads -= 1
                return None
            if self._tasks:
                self._taken += 1
                return self._tasks.popleft()
            if self._is_closed:
                self._threads -= 1
                return None
            self._idle.append(worker)
        was_woken = worker.wake.acquire(timeout=self._keep_alive_s)
        with self._lock:
            task, worker.task = worker.task, None
            if task is not None and not was_woken:
                worker.wake.acquire()  # released between the time-out and our lock
            if task is None:
                if worker in self._idle:
                    self._idle.remove(worker)
                self._threads -= 1
        return task


class Server(Protocol):
    """Who owns a thread and wants to know when it blocks."""

    def blocking(self) -> AbstractContextManager[None]:
        """Entered by a thread while it waits; may refuse."""
        ...


@contextmanager
def around_tasks(make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Have all pools run their tasks inside a context made by `make`.

    For debugging tools whose state is per thread, torch's CUDA sanitizer for one: on
    the main thread alone it sees nothing of what callbacks do.
    """
    _around_tasks.append(make)
    try:
        yield
    finally:
        _around_tasks.remove(make)


def _run_inside(task: Callable[[], None]) -> None:
    with ExitStack() as stack:
        for make in _around_tasks:
            stack.enter_context(make())
        task()


def current_pool() -> Server | None:
    """Who owns the calling thread, if anybody; mostly the pool that it belongs to."""
    return getattr(_thread, "pool", None)


def serve_as(server: Server) -> None:
    """Say who owns the calling thread."""
    _thread.pool = server
