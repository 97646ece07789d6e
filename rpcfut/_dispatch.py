"""Runs what a peer calls, and sees that it is answered.

Every call ends in exactly one answer. Whatever goes wrong after the header was read, in
the arguments, in the function, in its result or in sending that, becomes an error
reply, and the worker lives (RPC-3, RPC-4).
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._answer import Answer
from rpcfut._call_info import find_site
from rpcfut._codec import decode
from rpcfut._errors import DecodeError
from rpcfut._future import Future
from rpcfut._future_async import run_coroutine
from rpcfut._future_binding import bind_work
from rpcfut._future_core import add_hook, complete
from rpcfut._isolation import run_isolated
from rpcfut._own_streams import own_streams, place_in
from rpcfut._wire_codes import REQUEST_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rpcfut._completion import Completion
    from rpcfut._exposed import ExposedTable
    from rpcfut._order import DeviceOrder
    from rpcfut._streams import Scope
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Endpoint, IncomingCall


class Dispatcher:
    """Serves the calls of peers to one agent. `serve` runs on the agent's pool threads.

    Args:
        worker: The agent's name.
        endpoint: Takes the answers.
        exposed: What peers may call.
        watcher: Sends answers that wait for a device.
        order: Orders the handlers on the devices.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
        order: DeviceOrder,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._exposed = exposed
        self._watcher = watcher
        self._order = order
        self._cancels: dict[Future[Any], Callable[[], None]] = {}
        self._is_closed = False

    def serve(self, call: IncomingCall, caller: str) -> None:
        """Run one call and see to its answer. Never raises.

        Args:
            call: The call, its body still encoded.
            caller: Name of the worker that sent it.
        """
        answer = Answer(self._worker, self._endpoint, self._watcher, call, caller)
        run_isolated(self._serve_here, call, answer)

    def _serve_here(self, call: IncomingCall, answer: Answer) -> None:
        try:
            with own_streams() as scope:
                self._run(call, answer, scope)
        except BaseException as error:  # noqa: BLE001 - travels to the caller
            answer.fail(error)

    def _run(self, call: IncomingCall, answer: Answer, scope: Scope) -> None:
        request = decode(
            call.body,
            call.buffers,
            place=place_in(scope),
            outer_depth=REQUEST_DEPTH,
        )
        match request:
            case [str() as name, list() as args, dict() as kwargs]:
                pass
            case _:
                raise DecodeError("a call must be [name, args, kwargs]")
        answer.function = name
        exposed = self._exposed.find(name, self._worker)
        order = self._order if exposed.is_ordered else None
        scope.follow((*exposed.marks, *(order.marks() if order is not None else ())))
        prepared = None
        try:
            result = exposed.function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = self._drive(result, answer)
            if not isinstance(result, Future):
                prepared = answer.encode(result)
        finally:
            # Also what a function launched that raised, or whose result is refused.
            launched = scope.record(())
            if order is not None:
                order.note(launched)
        if prepared is not None:
            answer.send(prepared)
        else:
            future: Future[Any] = result
            follow = partial(self._follow, future, answer, order)
            add_hook(future, lambda _future, _where: _callbacks.run_on_pool(follow))

    def _drive(
        self, coroutine: Coroutine[Any, Any, Any], answer: Answer
    ) -> Future[Any]:
        """Run what an `async def` returned; its future covers what it launched."""
        future: Future[Any] = Future()
        bind_work(future, find_site(), f"async def {answer.function}")

        def finish(completion: Completion) -> None:
            self._cancels.pop(future, None)
            complete(future, completion, _callbacks.run_on_pool)

        # Not the future is cancelled: it ends when the coroutine did, with its marks.
        self._cancels[future] = run_coroutine(coroutine, finish, answer.origin)
        if self._is_closed:
            self.close()
        return future

    def close(self) -> None:
        """Cancel the coroutines that still run. Does not wait. Idempotent."""
        self._is_closed = True
        for cancel in tuple(self._cancels.values()):
            cancel()

    def _follow(
        self, future: Future[Any], answer: Answer, order: DeviceOrder | None
    ) -> None:
        """Answer with what a future that the function returned ended with."""
        try:
            with own_streams(future) as scope:
                try:
                    prepared = answer.encode(future.value())
                finally:
                    if order is not None:
                        order.note(scope.record(()))
            answer.send(prepared)
        except BaseException as error:  # noqa: BLE001 - travels to the caller
            answer.fail(error)
