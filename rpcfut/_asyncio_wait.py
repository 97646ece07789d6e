"""A future in asyncio: a task waits for it, a loop runs a callback of it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any

from rpcfut._call_info import find_site, function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_log = logging.getLogger("rpcfut.future")


def wait_in_loop(
    add_hook: Callable[[Callable[[], None]], None], cancel: Callable[[], object]
) -> Generator[asyncio.Future[None], None, None]:
    """Suspend the running task until the hook fires.

    Args:
        add_hook: Registers a function that is called once, on any thread, when the
            future is done (at once if it is).
        cancel: Called if the task is cancelled meanwhile, as asyncio's own futures are.

    Raises:
        RuntimeError: When no asyncio loop runs on this thread.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "this future was awaited outside a running asyncio loop and outside trio; "
            "await it in a coroutine that one of them runs, or call wait() instead"
        ) from None
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_done() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            _log.debug("the loop that awaited a future was closed before it was done")

    add_hook(on_done)
    try:
        yield from waiter
    except asyncio.CancelledError:
        cancel()
        raise


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The asyncio loop that runs on this thread, if any."""
    return _get_running_loop()


class LoopCallback:
    """A done callback that runs in the loop of the thread that registered it.

    `asyncio.wait` and others add callbacks that only their loop's thread may run. It is
    a hook: called once, on the completing thread.

    Args:
        function: Called in the loop, with the done future.
        loop: The loop.
    """

    __slots__ = ("_context", "_loop", "_site", "function")

    def __init__(
        self, function: Callable[[Any], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        if not callable(function):
            raise TypeError(f"a callback must be callable, got {function!r}")
        self.function = function
        self._loop = loop
        self._site = find_site()
        self._context = contextvars.copy_context()

    def __call__(self, future: Any, _where: Any) -> None:
        """Have the loop run it soon."""
        try:
            self._loop.call_soon_threadsafe(self._run, future, context=self._context)
        except RuntimeError:
            _log.debug("the loop of a done callback was closed before it could run")

    def _run(self, future: Any) -> None:
        try:
            self.function(future)
        except Exception as error:  # noqa: BLE001 - logged, as on the pool
            _log.error(
                "the done callback %s(), registered at %s, raised; later ones still "
                "run",
                function_name(self.function),
                self._site,
                exc_info=error,
            )
