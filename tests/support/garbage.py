"""What is collected, and what the collector may run into."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterator

_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))


def settle(live: weakref.WeakSet[Any], *, rounds: int = 200) -> None:
    """Collect until nothing lives: callbacks on pool threads need time to end.

    Args:
        live: What should go.
        rounds: How often to try, 50 ms apart.
    """
    pause = threading.Event()
    for _ in range(rounds):
        gc.collect()
        if not live:
            return
        pause.wait(0.05)


@contextmanager
def all_locks_held() -> Iterator[int]:
    """Hold every lock of the library that is free just now; yields how many."""
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("rpcfut")]
    found = [value for m in modules for value in list(vars(m).values())]
    # By identity: the classes of other tests may answer no question about themselves.
    classes = {id(value) for value in found if isinstance(value, type)}
    found += [
        getattr(thing, "_lock", None)
        for thing in gc.get_objects()
        if id(type(thing)) in classes
    ]
    locks = {id(lock): lock for lock in found if isinstance(lock, _LOCK_TYPES)}
    with ExitStack() as stack:
        count = 0
        for lock in locks.values():
            if lock.acquire(blocking=False):
                stack.callback(lock.release)
                count += 1
        yield count
