"""An asyncio loop on a thread of its own, for coroutines that have no other loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rpcfut._errors import DeadlockError
from rpcfut._pool import serve_as

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_JOIN_TIMEOUT_S = 5.0


class LoopThread:
    """Runs coroutines. The thread is made at first use. Any thread may call it.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps them weakly
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not started"
        if self._loop is not None:
            state = f"{len(self._tasks)} tasks"
        return f"<LoopThread {self._name!r}: {state}>"

    def start(self, coroutine: Coroutine[Any, Any, None]) -> Callable[[], None]:
        """Run a coroutine, which must not raise; returns what cancels it.

        Raises:
            RuntimeError: When it is closed.
        """
        loop = self._running_loop()
        box: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(coroutine)
            box.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            # Not box[0].cancel: `begin` may not have run yet.
            self._call_soon(lambda: box[0].cancel())  # noqa: PLW0108

        loop.call_soon_threadsafe(begin)
        return cancel

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Refuse a wait that would stop all coroutines on this thread.

        Raises:
            DeadlockError: Always.
        """
        raise DeadlockError(
            f"a wait on the thread {self._name!r} would stop all coroutines there, "
            "those that it waits for included; await the future instead"
        )
        yield

    def close(self) -> None:
        """Cancel what runs, end the loop and its thread. Idempotent.

        Blocks until the thread has ended, at most a few seconds.
        """
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_JOIN_TIMEOUT_S)

    def _call_soon(self, function: Callable[[], object]) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the loop {self._name!r} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        serve_as(self)
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                loop.run_until_complete(
                    asyncio.gather(*self._tasks, return_exceptions=True)
                )
        finally:
            asyncio.set_event_loop(None)
            loop.close()
