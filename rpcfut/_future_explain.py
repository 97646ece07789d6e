"""What a future waits for, in words; and whether waiting for it could ever end.

Both follow the links from a future to what completes it: the callback whose child it
is, the future that this callback returned, or the members of a future of many. What
they see may have moved on a moment later; it is never more than a picture.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._call_info import function_name
from rpcfut._future_core import FutureCore, now_s
from rpcfut._unobserved import birth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rpcfut._callback import Callback
    from rpcfut._future_core import Running

PATIENCE_S = 0.2
SHORT_PATIENCE_S = 0.05  # for those who have waited long enough
_MAX_STEPS = 8
_MAX_MEMBERS = 3
_NOTHING_RUNS = (None, None, 0.0)


def explain(future: FutureCore[Any], patience_s: float = PATIENCE_S) -> str:
    """Say what a future waits for, one step a line.

    Args:
        future: The future.
        patience_s: How long a callee may take to say where its call is, in seconds, for
            all of them together.
    """
    return "\n".join(_Teller(now_s() + patience_s).tell(future, "", _MAX_STEPS))


def find_deadlock(future: FutureCore[Any]) -> str | None:
    """Why a wait for `future` on the calling thread could never end; None if it could.

    Sees what is certain: that a callback which runs on this thread has to return before
    the future can be completed.
    """
    me = threading.get_ident()
    held = _callbacks.runtime().lanes.held_by(me)
    seen: set[int] = set()
    left = [future]
    while left:
        child = left.pop()
        if child._outcome is not None or id(child) in seen:
            continue
        seen.add(id(child))
        left += child._members() if child._members is not None else ()
        parent = child._leader() if child._leader is not None else None
        if parent is None:
            continue
        running, thread, _ = parent._running or _NOTHING_RUNS
        if running is not None and thread == me:
            name = function_name(running.function)
            if running.child is child:
                return f"it is what the running callback {name}() itself completes"
            if any(c.child is child for c in _queued(parent)):
                return f"it is queued behind {name}(), which runs on this thread"
        callback = _callback_of(child, parent)
        if callback is not None and held.intersection(callback.lane_keys):
            name = function_name(callback.function)
            return (
                f"its callback {name}() was given a stream on which a callback runs "
                "on this thread now, and these run one at a time"
            )
        left.append(parent)
    return None


class _Teller:
    """One explanation.

    Args:
        until_s: Until when callees may say where their calls are.
    """

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s

    def tell(self, future: FutureCore[Any], indent: str, steps: int) -> Iterator[str]:
        """Say what a future waits for, in lines."""
        age_s = now_s() - future._since_s
        made = birth(future._made_at, future._about)
        yield f"{indent}{future!r}: {made}, {age_s:.3f} s ago"
        indent += "  "
        if future._outcome is not None:
            busy = sorted({str(m.device) for m in future._marks if not m.event.query()})
            if busy:
                yield f"{indent}done on the host; waits for {', '.join(busy)}"
            return
        if steps == 0:
            yield f"{indent}and so on"
            return
        for line, cause in self._causes(future):
            yield f"{indent}{line}"
            if cause is not None:
                yield from self.tell(cause, indent + "  ", steps - 1)

    def _causes(
        self, future: FutureCore[Any]
    ) -> Iterator[tuple[str, FutureCore[Any] | None]]:
        """What a pending future waits for."""
        if future._members is not None:
            yield from _members_of(future._members())
        elif future._leader is not None:
            yield from _leader_of(future, future._leader())
        elif future._call is not None:
            yield f"waits for the answer of worker {future._call.to!r}", None
            yield future._call.ask(max(0.0, self._until_s - now_s())), None
        elif future._work is not None:
            yield f"waits for its {future._work} to end", None
        else:
            yield "waits for somebody to call set_result, set_exception or cancel", None


def _members_of(
    members: Iterable[FutureCore[Any]],
) -> Iterator[tuple[str, FutureCore[Any] | None]]:
    pending = [m for m in members if m._outcome is None]
    for member in pending[:_MAX_MEMBERS]:
        yield "waits for its member", member
    if len(pending) > _MAX_MEMBERS:
        yield f"waits for {len(pending) - _MAX_MEMBERS} more members", None


def _leader_of(
    child: FutureCore[Any], parent: FutureCore[Any] | None
) -> Iterator[tuple[str, FutureCore[Any] | None]]:
    if parent is None:
        yield "nobody will ever complete it: what it waited for was dropped", None
        return
    running = parent._running
    queued = _queued(parent)
    index = next((i for i, c in enumerate(queued) if c.child is child), None)
    if index is not None:
        name = function_name(queued[index].function)
        behind = f", behind {index} others" if index else ""
        yield f"waits for its callback {name}(), queued{behind} on", parent
        if running is not None:
            yield f"before it, {_what_runs(running)}", None
    elif running is not None and running[0].child is child:
        yield _what_runs(running), None
    else:
        yield "its callback returned a future; waits for that:", parent


def _what_runs(running: Running) -> str:
    callback, thread, since_s = running
    name = function_name(callback.function)
    since = f"since {now_s() - since_s:.3f} s"
    if thread is None:
        return f"its callback {name}() waits for its turn on its stream, {since}"
    return (
        f"the callback {name}(), registered at {callback.site}, runs {since} on "
        f"thread {_thread_name(thread)!r}"
    )


def _thread_name(ident: int) -> str:
    return next((t.name for t in threading.enumerate() if t.ident == ident), "?")


def _queued(parent: FutureCore[Any]) -> list[Callback]:
    with parent._lock:
        return list(parent._queue or ())


def _callback_of(child: FutureCore[Any], parent: FutureCore[Any]) -> Callback | None:
    """The callback of `parent` that completes `child`, before it runs."""
    running, _, _ = parent._running or _NOTHING_RUNS
    if running is not None and running.child is child:
        return running
    return next((c for c in _queued(parent) if c.child is child), None)
