"""Work of the library's own on a pool thread, tied to the caller's streams.

Theory of operation. `then` does this for a user's callback; here there is no parent,
and the value of the future need not be what holds the memory. The marks of the caller's
current streams are recorded on the calling thread, before the hand-over. The pool
thread makes own streams current, which wait for these marks, runs the work there, and
records the future's marks on them before it gives them back (STR-1, STR-5, STR-10).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rpcfut import _callbacks
from rpcfut._call_info import find_site
from rpcfut._completion import Completion, completion_of
from rpcfut._errors import Origin
from rpcfut._future import Future
from rpcfut._future_binding import bind_work
from rpcfut._future_core import complete
from rpcfut._outcome import Value, failure_of
from rpcfut._streams import (
    current_device,
    enter_scope,
    pinned_marks,
    record_in_use,
    used_devices,
)
from rpcfut._type_registry import current_types, types_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut._call_info import Site
    from rpcfut._devices import Device
    from rpcfut._extract import DataRef
    from rpcfut._streams import Mark
    from rpcfut._type_registry import Types

T = TypeVar("T")


class Made(NamedTuple, Generic[T]):
    """What a piece of work came to.

    Args:
        value: The value of its future.
        holds: A value that holds the memory that the work wrote, for the extractors;
            whoever reads the future waits for it, and the allocator is told.
    """

    value: T
    holds: object


class _Work(NamedTuple):
    """A piece of work and what it needs; dropped when it has run."""

    run: Callable[[], Made[Any]]
    reads: Sequence[DataRef]
    marks: tuple[Mark, ...]
    current: Device | None
    types: Types
    what: str
    site: Site

    def origin(self) -> Origin:
        """What it made, in words."""
        return Origin(
            what=f"what the {self.what} called at {self.site} made", path_root="made"
        )


def hand_over(
    run: Callable[[], Made[T]], reads: Sequence[DataRef] = (), *, what: str
) -> Future[T]:
    """Have a pool thread run something behind what is queued here, now.

    Args:
        run: Runs with own streams current on every used device and on those of
            `reads`. They wait for the streams that are current there for the calling
            thread. An error that it raises is the future's.
        reads: The memory that it reads; the allocator is told.
        what: What runs, for messages.

    Returns:
        The future of its value. It runs also when that is cancelled.
    """
    site, marks = find_site(), record_in_use(reads)
    work = _Work(run, reads, marks, current_device(), current_types(), what, site)
    future: Future[T] = Future()
    bind_work(future, site, what)
    # The task outlives the callbacks of the future; the work must not.
    task = functools.partial(_finish, [work], future)
    pinned = pinned_marks(marks, reads)
    if not pinned:
        _callbacks.run_on_pool(task)
        return future

    def fail(error: Exception) -> None:
        complete(future, Completion(failure_of(error)), _callbacks.run_on_pool)

    # No thread that serves others waits for a device (STR-2).
    _callbacks.runtime().watcher.when_passed(
        pinned, lambda: _callbacks.run_on_pool(task), fail
    )
    return future


def _finish(box: list[_Work], future: Future[Any]) -> None:
    try:
        completion = _run_typed(box.pop())
    except BaseException as error:  # noqa: BLE001 - a device failed; not lost
        completion = Completion(failure_of(error))
    complete(future, completion, _callbacks.run_after)


def _run_typed(work: _Work) -> Completion:
    if work.types is current_types():
        return _run_tied(work)
    with types_in_use(work.types):
        return _run_tied(work)


def _run_tied(work: _Work) -> Completion:
    if not (work.marks or work.reads or used_devices()):
        return _call(work, record_in_use)
    scope = enter_scope(
        _callbacks.runtime().streams.lease,
        marks=work.marks,
        refs=work.reads,
        current=work.current,
    )
    try:
        return _call(work, scope.record)
    finally:
        scope.leave()


def _call(
    work: _Work, record: Callable[[Sequence[DataRef]], tuple[Mark, ...]]
) -> Completion:
    try:
        made = work.run()
    except BaseException as error:  # noqa: BLE001 - stored in the future
        return Completion(failure_of(error), record(()))
    completion = completion_of(made.holds, None, work.origin, record)
    if isinstance(completion.outcome, Value):
        return completion._replace(outcome=Value(made.value))
    return completion
