"""A callback that is an `async def`.

Theory of operation. The coroutine runs as a task of one asyncio loop that all such
callbacks of the process share. It is wrapped, so that each of its steps, from one await
to the next, runs with its own streams current: they are leased when it starts and given
back when it ends, and between its steps they are current for nobody (STR-9). A task
that it spawns is not wrapped, and runs under the loop's own streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._call_info import Site, function_name
from rpcfut._completion import Completion, completion_of
from rpcfut._errors import Origin
from rpcfut._future_core import FutureCore, complete
from rpcfut._outcome import Cancelled, failure_of
from rpcfut._streams import enter_scope, record_current, used_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._devices import Device
    from rpcfut._outcome import Outcome
    from rpcfut._streams import Mark


class AsyncCallback:
    """One `async def` callback, from its registration to its end.

    Args:
        function: Called with the done parent; returns a coroutine.
        result: Completed when the coroutine ends; what `start` returns.

    Raises:
        TypeError: When `function` is not callable.
    """

    def __init__(
        self, function: Callable[[Any], Any], result: FutureCore[Any], site: Site
    ) -> None:
        if not callable(function):
            raise TypeError(f"a callback must be callable, got {function!r}")
        self._function = function
        self._result = result
        self._site = site
        self._cancel_task: Callable[[], None] | None = None
        self._is_cancelled = False
        self.__qualname__ = function_name(function)  # a callback is named by this

    def __call__(self, parent: FutureCore[Any]) -> Any:
        """Start the coroutine, ordered behind the streams that are current here.

        Raises:
            TypeError: When the function returns no coroutine.
        """
        if self._is_cancelled:
            complete(self._result, Completion(Cancelled()), _callbacks.run_after)
            return self._result
        coroutine = self._function(parent)
        if not isinstance(coroutine, Coroutine):
            raise TypeError(
                f"then_async wants an async def, but {self.__qualname__}() returned "
                f"{coroutine!r}; give a plain function to then()"
            )
        self._cancel_task = run_coroutine(
            coroutine, self._finish, self._origin(parent), parent._outcome
        )
        if self._is_cancelled:
            self._cancel_task()
        return self._result

    def cancel(self) -> None:
        """Cancel the coroutine, or do not start it."""
        self._is_cancelled = True
        if self._cancel_task is not None:
            self._cancel_task()

    def _finish(self, completion: Completion) -> None:
        complete(self._result, completion, _callbacks.run_on_pool)

    def _origin(self, parent: FutureCore[Any]) -> Callable[[], Origin]:
        about = parent._about
        return lambda: Origin(
            what=f"the return value of the callback {self.__qualname__}() registered "
            f"at {self._site}",
            path_root="result",
            worker=about.worker if about is not None else None,
            call=str(about) if about is not None else None,
        )


def run_coroutine(
    coroutine: Coroutine[Any, Any, Any],
    finish: Callable[[Completion], None],
    origin: Callable[[], Origin],
    parent_outcome: Outcome[Any] | None = None,
) -> Callable[[], None]:
    """Run a coroutine on the process's loop, each step on streams of its own (STR-9).

    Its first step comes after what is queued on the streams that are current here. It
    runs in a copy of the calling context.

    Args:
        coroutine: The coroutine; closed if it cannot be started.
        finish: Told how it ended; the marks cover all that it launched.
        origin: Says where its return value came from.
        parent_outcome: How the parent ended; its error keeps its traceback.

    Returns:
        What cancels it; any thread may call that.
    """
    marks = record_current(used_devices())
    stepper = _Stepper(coroutine, marks, finish, origin, parent_outcome)
    try:
        return _callbacks.runtime().loop.start(stepper)
    except BaseException:
        coroutine.close()
        raise


class _Stepper(Coroutine[Any, Any, None]):
    """A coroutine whose steps run with streams of their own current; never raises.

    Args:
        inner: The user's coroutine.
        marks: What its first step comes after.
        finish: Told how it ended; the marks cover all that it launched.
        origin: Says where its return value came from.
        parent_outcome: How the parent ended; its error keeps its traceback.
    """

    def __init__(
        self,
        inner: Coroutine[Any, Any, Any],
        marks: tuple[Mark, ...],
        finish: Callable[[Completion], None],
        origin: Callable[[], Origin],
        parent_outcome: Outcome[Any] | None,
    ) -> None:
        self._inner = inner
        self._parent_outcome = parent_outcome
        self._marks = marks
        self._finish = finish
        self._origin = origin
        self._leased: dict[Device, Any] = {}
        self._releases: list[Callable[[], None]] = []

    def send(self, value: Any) -> Any:
        """Run the next step."""
        return self._step(lambda: self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        """Run the next step, with an error raised in it."""
        return self._step(lambda: self._inner.throw(*error))

    def close(self) -> None:
        """End it early: the loop ended."""
        self._inner.close()
        self._end(Completion(Cancelled("the loop that ran the callback ended")))

    def __await__(self) -> Any:
        raise TypeError("a stepper is run by a task, not awaited")

    def _step(self, advance: Callable[[], Any]) -> Any:
        try:
            marks, self._marks = self._marks, ()
            scope = enter_scope(self._lease, marks=marks, devices=tuple(self._leased))
            try:
                return advance()
            except StopIteration as stop:
                completion = completion_of(stop.value, None, self._origin, scope.record)
            except BaseException as error:  # noqa: BLE001 - stored in the child
                completion = Completion(self._outcome_of(error), scope.record(()))
            finally:
                scope.leave()
        except BaseException as error:  # noqa: BLE001 - a device failed; not lost
            completion = Completion(failure_of(error))
        self._end(completion)
        raise StopIteration

    def _outcome_of(self, error: BaseException) -> Outcome[Any]:
        if isinstance(error, asyncio.CancelledError):
            return Cancelled(str(error) or "the callback was cancelled")
        return failure_of(error, self._parent_outcome)

    def _lease(self, device: Device) -> tuple[Any, Callable[[], None]]:
        """The stream of this coroutine; kept from step to step."""
        if device not in self._leased:
            stream, release = _callbacks.runtime().streams.lease(device)
            self._leased[device] = stream
            self._releases.append(release)
        return self._leased[device], _nothing

    def _end(self, completion: Completion) -> None:
        releases, self._releases = self._releases, []
        for release in releases:
            release()
        self._finish(completion)


def _nothing() -> None:
    """The stream is kept until the coroutine ends."""
