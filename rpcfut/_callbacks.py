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

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from rpcfut._lanes import Lanes
from rpcfut._loop_thread import LoopThread
from rpcfut._pool import ThreadPool
from rpcfut._stream_pool import StreamPool
from rpcfut._watcher import DeviceWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_NESTING = 16


class CallbackRuntime:
    """What all futures of a process share: threads, streams and lanes for callbacks."""

    def __init__(self) -> None:
        self.pool = ThreadPool("rpcfut-callback")
        self.streams = StreamPool()
        self.lanes = Lanes()
        self.watcher = DeviceWatcher("callbacks")
        self.loop = LoopThread("rpcfut-callback-loop")

    def __repr__(self) -> str:
        return f"<CallbackRuntime {self.pool!r} {self.streams!r} {self.lanes!r}>"


class _PutOff(threading.local):
    """What the calling thread has put off: one stack per `run_here`, innermost last."""

    def __init__(self) -> None:
        self.stacks: list[list[Callable[[], None]]] = []
        self.interrupt: KeyboardInterrupt | None = None


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
    global _runtime  # noqa: PLW0603 - as above
    with _runtime_lock:
        saved, _runtime = _runtime, CallbackRuntime()
        mine = _runtime
    try:
        yield mine
    finally:
        mine.pool.close()
        mine.watcher.close(timeout_s=5.0)
        mine.loop.close()
        with _runtime_lock:
            _runtime = saved


def run_here(*tasks: Callable[[], None]) -> None:
    """Run tasks, and what they put off, before returning.

    Nested calls run at once, so that `set_result` inside a callback behaves as anywhere
    else; from a depth of `MAX_NESTING` on they go to the pool.

    Raises:
        KeyboardInterrupt: When Ctrl-C hit one of the callbacks; all have been run.
    """
    stacks = _put_off.stacks
    if len(stacks) >= MAX_NESTING:
        run_on_pool(*tasks)
        return
    stack = [*tasks]
    stacks.append(stack)
    try:
        while stack:
            stack.pop()()
    finally:
        stacks.pop()
        if stack:  # a task was interrupted
            _submit_all(stack)
    if _put_off.interrupt is not None:
        interrupt, _put_off.interrupt = _put_off.interrupt, None
        raise interrupt


def run_on_pool(*tasks: Callable[[], None]) -> None:
    """Run tasks, and what they put off, on pool threads."""
    pool = runtime().pool
    for task in tasks:
        pool.submit(functools.partial(run_here, task))


def run_after(*tasks: Callable[[], None]) -> None:
    """Run tasks after the callback that runs on this thread, or else on the pool.

    What was put off last runs first: as nested calls would, without the nesting.
    """
    stacks = _put_off.stacks
    if stacks:
        stacks[-1].extend(tasks)
    else:
        run_on_pool(*tasks)


def is_inside_task() -> bool:
    """Whether the calling thread runs a task just now: a callback, for one."""
    return bool(_put_off.stacks)


def about_to_block() -> None:
    """Give what this thread has put off to the pool: it may be what it waits for."""
    for stack in _put_off.stacks:
        _submit_all(stack)


def note_interrupt(error: BaseException) -> bool:
    """Have `run_here` raise a Ctrl-C once the callbacks have run; whether it is one.

    A callback's error goes to its child, but Ctrl-C only happened to hit the callback:
    it is meant for the program.
    """
    is_interrupt = (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )
    if is_interrupt:
        _put_off.interrupt = cast("KeyboardInterrupt", error)
    return is_interrupt


def _submit_all(stack: list[Callable[[], None]]) -> None:
    while stack:
        run_on_pool(stack.pop())
