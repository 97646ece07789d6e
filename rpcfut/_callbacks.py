"""Which thread runs the callbacks of a future, and when.

Theory of operation. Callbacks run inside the user's own `set_result`, or on a pool
thread; never on a thread that merely waits or reads the network, since that thread may
hold locks that a callback wants, or serve others (FUT-3, RPC-6). What is run is always
"drain the callbacks of this future", and there are three places to run it:

* `run_here`: now, on this thread. A user's `set_result` does this.
* `run_after`: on this thread, after the callback that runs on it now; so a chain of a
  hundred thousand callbacks is a loop, not a recursion. Without one, on the pool.
* `run_on_pool`: on an idle pool thread.

A thread that is about to block gives what it had put off to the pool
(`about_to_block`): it may well be waiting for just that.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rpcfut._lanes import Lanes
from rpcfut._pool import ThreadPool
from rpcfut._stream_pool import StreamPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_NESTING = 16


class CallbackRuntime:
    """What all futures of a process share: threads, streams and lanes for callbacks."""

    def __init__(self) -> None:
        self.pool = ThreadPool("rpcfut-callback")
        self.streams = StreamPool()
        self.lanes = Lanes()

    def __repr__(self) -> str:
        return f"<CallbackRuntime {self.pool!r} {self.streams!r} {self.lanes!r}>"


class _PutOff(threading.local):
    """What the calling thread has put off: one queue per `run_here`, innermost last."""

    def __init__(self) -> None:
        self.queues: list[deque[Callable[[], None]]] = []


_runtime: CallbackRuntime | None = None
_runtime_lock = threading.Lock()
_put_off = _PutOff()


def runtime() -> CallbackRuntime:
    """The process's callback runtime, made at first use."""
    global _runtime  # noqa: PLW0603 - the one holder, see docs/design/architecture.md
    if _runtime is not None:
        return _runtime
    with _runtime_lock:
        if _runtime is None:
            _runtime = CallbackRuntime()
        return _runtime


@contextmanager
def isolated_runtime() -> Iterator[CallbackRuntime]:
    """Give the futures of a test a runtime of their own."""
    global _runtime  # noqa: PLW0603
    with _runtime_lock:
        saved, _runtime = _runtime, CallbackRuntime()
        mine = _runtime
    try:
        yield mine
    finally:
        mine.pool.close()
        with _runtime_lock:
            _runtime = saved


def run_here(task: Callable[[], None]) -> None:
    """Run `task`, and what it puts off, before returning.

    Nested calls run at once, so that `set_result` inside a callback behaves as anywhere
    else; from a depth of `MAX_NESTING` on they go to the pool.
    """
    queues = _put_off.queues
    if len(queues) >= MAX_NESTING:
        run_on_pool(task)
        return
    queue = deque((task,))
    queues.append(queue)
    try:
        while queue:
            queue.popleft()()
    finally:
        queues.pop()
        _submit_all(queue)  # not empty only if a task was interrupted


def run_on_pool(task: Callable[[], None]) -> None:
    """Run `task`, and what it puts off, on a pool thread."""
    runtime().pool.submit(lambda: run_here(task))


def run_after(task: Callable[[], None]) -> None:
    """Run `task` after the callback that runs on this thread, or else on the pool."""
    queues = _put_off.queues
    if queues:
        queues[-1].append(task)
    else:
        run_on_pool(task)


def about_to_block() -> None:
    """Give what this thread has put off to the pool: it may be what it waits for."""
    for queue in _put_off.queues:
        _submit_all(queue)


def _submit_all(tasks: deque[Callable[[], None]]) -> None:
    while tasks:
        run_on_pool(tasks.popleft())
