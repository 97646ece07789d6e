"""Done callbacks that are taken back before they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpcfut._asyncio_wait import LoopCallback

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._future_core import FutureCore


def remove_callback(future: FutureCore[Any], function: Callable[..., object]) -> int:
    """Take back a done callback where it has not run yet; returns how many times.

    The user's code may compare and finalise functions, so both happen without the lock.
    """
    with future._lock:
        hooks, queue = list(future._hooks or ()), list(future._queue or ())
    looped = [h for h in hooks if isinstance(h, LoopCallback)]
    found_hooks = [h for h in looped if h.function == function]
    found = [c for c in queue if c.child is None and c.function == function]
    functions = [c.function for c in found]
    with future._lock:
        left_hooks, left = future._hooks or [], future._queue or ()
        found_hooks = [h for h in found_hooks if h in left_hooks]
        for hook in found_hooks:
            left_hooks.remove(hook)
        found = [c for c in found if c in left]
        for callback in found:
            callback.function = _nothing  # its place in a lane is taken already
    del functions
    return len(found_hooks) + len(found)


def _nothing(_future: Any) -> None:
    """Runs in place of a done callback that was taken back."""
