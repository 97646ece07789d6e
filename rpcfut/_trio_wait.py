"""Waiting for a future in a trio task without blocking its loop.

trio is never imported here: a caller that runs in it has imported it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_log = logging.getLogger("rpcfut.future")


def is_in_trio() -> bool:
    """Whether a trio task runs on this thread just now."""
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except (RuntimeError, AttributeError):  # the latter while it is being imported
        return False
    return True


def wait_in_trio(
    add_hook: Callable[[Callable[[], None]], None], cancel: Callable[[], object]
) -> Generator[Any, Any, None]:
    """Suspend the running task until the hook fires.

    Args:
        add_hook: Registers a function that is called once, on any thread, when the
            future is done (at once if it is).
        cancel: Called if the task is cancelled meanwhile.
    """
    trio: Any = sys.modules["trio"]
    token = trio.lowlevel.current_trio_token()
    event = trio.Event()

    def on_done() -> None:
        try:
            token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            _log.debug("the run that awaited a future ended before it was done")

    add_hook(on_done)
    try:
        yield from event.wait().__await__()
    except trio.Cancelled:
        cancel()
        raise
