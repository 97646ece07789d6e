"""Waiting for a future in an asyncio task without blocking its loop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

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
            "this future was awaited outside a running asyncio loop; await it in a "
            "coroutine that asyncio.run() runs, or call wait() instead"
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
