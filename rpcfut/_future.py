"""A future that knows about streams.

Theory of operation. A future is done on the host long before the device work behind its
value has run, so it carries *marks*: one event per device. Completing records them on
the completing thread (STR-1); every way to get the value makes the current streams of
the frame that gets it wait for them (STR-2); a callback's child gets marks of its own,
from what the callback returned and launched (STR-4, STR-5).

It is a `concurrent.futures.Future` to `concurrent.futures.wait`, `as_completed` and
`asyncio.wrap_future`, but does not make that class's condition until one of them asks.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rpcfut import _callbacks
from rpcfut._asyncio_wait import LoopCallback, running_loop, wait_in_loop
from rpcfut._call_info import call_site, find_place, find_site
from rpcfut._callback import Callback
from rpcfut._capture import refuse_capture
from rpcfut._completion import Completion, completion_of
from rpcfut._errors import InvalidStateError, Origin
from rpcfut._future_async import AsyncCallback
from rpcfut._future_core import FutureCore
from rpcfut._future_explain import explain
from rpcfut._future_removal import remove_callback
from rpcfut._future_wait import block, check_streams, current_streams
from rpcfut._outcome import Cancelled, Failure, Value, failure_of
from rpcfut._registry import register_builtin
from rpcfut._streams import pinned_marks, used_devices, wait_marks
from rpcfut._trio_wait import is_in_trio, wait_in_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    import torch

    from rpcfut._future_core import Hook, Where
    from rpcfut._host_stream import Streams


T = TypeVar("T")
S = TypeVar("S")


class Future(FutureCore[T]):
    """The result of a call or a computation, safe to read on any stream.

    Any thread may call any method. Streams: completing records events on the calling
    thread's current streams; reading makes the calling thread's current streams wait
    for them, and blocks the host only for pinned host memory.

    Args:
        devices: Devices that the value may lie on, each with its index (``"cuda:0"``,
            ``0`` or a ``torch.device``). A value elsewhere fails the future with
            `DeviceMismatchError`. By default the devices are taken from the value,
            which is as safe.

    Raises:
        ValueError: When a device has no index.
    """

    def __repr__(self) -> str:
        match self._outcome:
            case None:
                state = "pending"
            case Value(value=value):
                state = f"value of type {type(value).__name__}"
            case Failure(error=error):
                state = f"error {type(error).__name__}"
            case Cancelled():
                state = "cancelled"
        waiting = len(self._queue or ())
        callbacks = f", {waiting} callbacks" if waiting else ""
        about = f", {self._about}" if self._about is not None else ""
        return f"<rpcfut.Future {state}{callbacks}{about}>"

    # ---- completing -----------------------------------------------------------------

    def set_result(self, result: T) -> None:
        """Complete the future with a value and run its callbacks.

        Records one event per device that holds memory of the value, on the calling
        thread's current stream of that device. A value of a type that nobody knows
        fails the future with `ExtractionError`; the readers see that, at once.

        Raises:
            InvalidStateError: When the future is done already; nothing changes.
        """
        if not self.try_set_result(result):
            raise self._done_already()

    def try_set_result(self, result: T) -> bool:
        """As `set_result`, but return False if the future is done already."""
        if self._outcome is not None:
            return False
        used = used_devices()
        if used:
            refuse_capture(used, "set_result()")
        completion = completion_of(result, self._devices, self._origin)
        return self._complete(completion, _callbacks.run_here)

    def set_exception(self, exception: BaseException | None) -> None:
        """Complete the future with an error and run its callbacks.

        Raises:
            InvalidStateError: When the future is done already; nothing changes.
            TypeError: When `exception` is no exception.
        """
        if not isinstance(exception, BaseException):
            raise TypeError(
                f"set_exception wants an exception instance, got {exception!r}"
            )
        completion = Completion(failure_of(exception))
        if not self._complete(completion, _callbacks.run_here):
            raise self._done_already()

    def cancel(self) -> bool:
        """Complete the future as cancelled, unless it is done already.

        Children run and see ``CancelledError`` when they read their parent; parents are
        not cancelled.

        Returns:
            Whether the future is cancelled now.
        """
        return self._cancel(_callbacks.run_here)

    def _cancel(self, where: Where) -> bool:
        is_first = self._complete(Completion(Cancelled()), where)
        if is_first and self._call is not None:
            self._call.give_up()
        elif is_first and self._canceller is not None:
            self._canceller()
        return self.cancelled()

    # ---- asking ---------------------------------------------------------------------

    def done(self) -> bool:
        """Whether the future has ended; device work behind its value may still run."""
        return self._outcome is not None

    def cancelled(self) -> bool:
        """Whether the future was cancelled."""
        return isinstance(self._outcome, Cancelled)

    def explain(self) -> str:
        """Say what the future waits for, step by step, in lines of text (FUT-10).

        Who made it and when; the callback that it is the child of, where that was
        registered, and whether it is queued, waits for its stream or runs, since when
        and on which thread; what that callback returned; on which devices work behind
        its value still runs. The callee of a call is asked where that is, and has
        200 ms to say so; "does not answer" is an answer, too. Any thread.
        """
        return explain(self)

    # ---- reading --------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> T:
        """Wait until the future is done and return its value.

        Args:
            timeout: Seconds to wait for the host side; None waits for ever.

        Returns:
            The value. The calling thread's current streams wait for the device work
            behind it; the host does not, except for pinned host memory.

        Raises:
            TimeoutError: When it is not done in time; the future stays usable. The
                message is that of `explain`.
            concurrent.futures.CancelledError: When it was cancelled.
            DeadlockError: When called without a timeout in a callback that must return
                before the future can be completed.
            PoolExhaustedError: When called on a pool thread and no other may start.
            BaseException: The error that the future failed with.
        """
        if self._outcome is None:
            block(self, timeout)
        return self._read()

    def result(self, timeout: float | None = None) -> T:
        """Same as `wait`, under the name that `concurrent.futures` uses."""
        return self.wait(timeout)

    def value(self) -> T:
        """Return the value of a done future, as `wait` does.

        Raises:
            InvalidStateError: When the future is not done.
        """
        if self._outcome is None:
            raise InvalidStateError(f"value() before the future is done: {self!r}")
        return self._read()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the future is done and return its error, None if it has a value.

        Streams as for `wait`.

        Raises:
            TimeoutError: When it is not done in time.
            concurrent.futures.CancelledError: When it was cancelled.
        """
        if self._outcome is None:
            block(self, timeout)
        self._look()
        if self._marks or self._refs:
            refuse_capture(used_devices(), "exception()")
            wait_marks(self._marks, self._refs)
        match self._outcome:
            case Failure(error=error):
                return error
            case Cancelled() as outcome:
                outcome.reraise()
        return None

    def __await__(self) -> Generator[Any, None, T]:
        """Await the value in a task of asyncio or trio, of any loop.

        The loop is not blocked. The streams that are current when the task goes on wait
        for the device work. Cancelling the task cancels the future.

        Raises:
            StreamContextError: When the task goes on under other current streams than
                it stopped with.
        """
        if self._outcome is None or pinned_marks(self._marks, self._refs):
            yield from self._wait_in_task()
        return self._read()

    def _wait_in_task(self) -> Generator[Any, Any, None]:
        hooks: list[Hook] = []

        def add_hook(wake: Callable[[], None]) -> None:
            hooks.append(lambda _future, _where: self._when_filled(wake, wake))
            self._add_hook(hooks[0])

        def cancel() -> None:
            # Not here: a callback must not block the loop.
            self._cancel(_callbacks.run_on_pool)

        streams = current_streams()
        try:
            yield from (wait_in_trio if is_in_trio() else wait_in_loop)(
                add_hook, cancel
            )
        finally:
            for hook in hooks:
                self._drop_hook(hook)
        check_streams(streams)

    # ---- chaining -------------------------------------------------------------------

    @overload
    def then(
        self,
        callback: Callable[[Future[T]], Future[S]],
        *,
        stream: Streams = None,
        devices: Iterable[str | int | torch.device] | None = None,
        after_here: bool = True,
        extractor: Callable[[Any], object] | None = None,
    ) -> Future[S]: ...

    @overload
    def then(
        self,
        callback: Callable[[Future[T]], S],
        *,
        stream: Streams = None,
        devices: Iterable[str | int | torch.device] | None = None,
        after_here: bool = True,
        extractor: Callable[[Any], object] | None = None,
    ) -> Future[S]: ...

    def then(
        self,
        callback: Callable[[Future[T]], Any],
        *,
        stream: Streams = None,
        devices: Iterable[str | int | torch.device] | None = None,
        after_here: bool = True,
        extractor: Callable[[Any], object] | None = None,
    ) -> Future[Any]:
        """Call `callback` with this future once done; return a future of its result.

        The callback runs on a pool thread or inside the `set_result` that completes
        this future, callbacks of one future one at a time and in order. On every device
        in play one of the library's own streams is current for it; these wait for this
        future's device work and for what is queued on the streams that are current
        here, now. The child's events come from what the callback returns and launches.
        For a step after a backward pass see docs/backward.md.

        Args:
            callback: Gets this future, done. If it returns a future, the child
                completes when that one does.
            stream: A stream to run on instead, or several, one per device:
                ``torch.cuda.Stream`` or `rpcfut.stream`. Callbacks that were given one
                stream run one at a time, in the order in which their parents completed.
            devices: Further devices to have an own stream on.
            after_here: Whether to wait for the streams that are current here.
            extractor: Is given what the callback returns and says what it holds, as
                for `register_extractor`, for this value only. Not asked about a future.

        Returns:
            The child. If the callback raises it fails with that error; if it returns a
            type that nobody knows, with `ExtractionError`, at once.

        Raises:
            TypeError: When a function is not callable or `stream` is no stream.
        """
        child: Future[Any] = Future.__new__(Future)
        place = find_place(2)
        child._begin(place)
        child._leader = weakref.ref(self)
        if self._about is not None:
            child._about = self._about
        registered = Callback(callback, child, place)
        if not (stream is None and devices is None and extractor is None):
            registered.ask_for(stream, devices, extractor)
        used = used_devices()
        if used:
            registered.note_here(used, after_here=after_here)
        self._enqueue(registered)
        return child

    def then_async(
        self,
        callback: Callable[[Future[T]], Coroutine[Any, Any, S]],
        *,
        devices: Iterable[str | int | torch.device] | None = None,
        after_here: bool = True,
    ) -> Future[S]:
        """As `then`, for an ``async def``: it may await other futures.

        It runs as a task of one asyncio loop that the process has for this, on a thread
        of its own, and must not block that. Each of its steps, from one await to the
        next, runs with streams of its own current, the same ones in each step; they
        wait for what those of a `then` callback wait for. Tasks that it spawns run
        under the loop's streams instead. Later callbacks of this future do not wait
        until it has ended.

        Args:
            callback: Gets this future, done; its coroutine's value is the child's.
            devices: Further devices to have an own stream on.
            after_here: Whether to wait for the streams that are current here.

        Returns:
            The child. Cancelling it cancels the coroutine.

        Raises:
            TypeError: When `callback` is not callable.
        """
        result: Future[S] = Future()
        run = AsyncCallback(callback, result, find_site())
        child: Future[S] = self.then(run, devices=devices, after_here=after_here)
        child._canceller = run.cancel
        return child

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn` with this future once it is done; what it returns is dropped.

        Runs under the same rules and streams as a `then` callback. If an asyncio loop
        runs on the calling thread, that loop runs `fn` instead, soon after, under its
        own streams; `asyncio.wait` needs that. If it raises, that is logged with the
        place that registered it.

        Raises:
            TypeError: When `fn` is not callable.
        """
        loop = running_loop()
        if loop is None:
            registered = Callback(fn, None, find_place(2))
            used = used_devices()
            if used:
                registered.note_here(used)
            self._enqueue(registered)
        else:
            self._add_hook(LoopCallback(fn, loop))

    def remove_done_callback(self, fn: Callable[[Future[T]], object]) -> int:
        """Take back what `add_done_callback` was given, where that has not run yet.

        Returns:
            How many times it was registered.
        """
        return remove_callback(self, fn)

    # ---- inside -------------------------------------------------------------------

    def _origin(self) -> Origin:
        about = self._about
        return Origin(
            what=f"the value given to set_result at {call_site()}",
            worker=about.worker if about is not None else None,
            call=str(about) if about is not None else None,
        )

    def _done_already(self) -> InvalidStateError:
        return InvalidStateError(f"the future is done already: {self!r}")


# A future inside a value orders its own readers; it adds no memory to the value.
register_builtin(Future)
