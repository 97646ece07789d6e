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
from rpcfut._codec import decode, decode_plain_request, peek_name
from rpcfut._errors import DecodeError
from rpcfut._future import Future
from rpcfut._future_async import run_coroutine
from rpcfut._future_binding import bind_work
from rpcfut._future_core import add_hook, complete
from rpcfut._isolation import run_isolated
from rpcfut._order import DeviceOrder
from rpcfut._own_streams import own_streams, place_in
from rpcfut._served import ServedTable
from rpcfut._serving import Stage, serve_in_context
from rpcfut._streams import enter_scope
from rpcfut._turns import Turns
from rpcfut._wire_codes import REQUEST_DEPTH
from rpcfut_transport import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rpcfut._completion import Completion
    from rpcfut._exposed import ExposedTable
    from rpcfut._placement import Placement
    from rpcfut._serving import ServedCall
    from rpcfut._streams import Scope
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Endpoint, IncomingCall, Work

_WAITS, _ENDS = Admission.WAITS, Admission.ENDS


class Dispatcher:
    """Serves the calls of peers to one agent.

    Args:
        worker: The agent's name.
        endpoint: Takes the answers.
        exposed: What peers may call.
        watcher: Sends answers that wait for a device.
        placement: Says where arrays in arguments arrive.
        start: Runs something on a pool thread.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
        placement: Placement,
        start: Callable[[Callable[[], None]], None],
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._rooms = endpoint.rooms
        self._exposed = exposed
        self._watcher = watcher
        self._placement = placement
        self._lease = _callbacks.runtime().streams.lease
        self.order = DeviceOrder(self._lease)
        self._start = start
        self._turns: dict[str, Turns] = {}
        self.served = ServedTable()
        # Calls whose functions, or what these returned, have not ended.
        self.running: set[ServedCall] = set()
        self._is_closed = False

    def take(self, call: IncomingCall, served: ServedCall) -> Work | None:
        """Take one call. Does not block.

        Args:
            call: The call, its body still encoded.
            served: What its function may know of it.

        Returns:
            Work that runs it and sees to its answer, for a pool thread; None if it has
            to wait for its turn, which then starts it.
        """
        self.served.add(call.sender_rank, call.call_id, served)
        self.running.add(served)
        turns = self._turns_of(call) if self._exposed.has_serial else None
        if turns is None:
            return partial(self.serve, call, served, self.running.discard)

        def serve(next_turn: Callable[[], None]) -> None:
            def end(served: ServedCall) -> None:
                next_turn()
                self.running.discard(served)

            self.serve(call, served, end)

        turns.submit(serve)
        return None

    def _turns_of(self, call: IncomingCall) -> Turns | None:
        name = peek_name(call.body)
        if name is None or not self._exposed.is_serial(name):
            return None
        return self._turns.setdefault(name, Turns(self._start))

    def serve(
        self, call: IncomingCall, served: ServedCall, done: Callable[[ServedCall], None]
    ) -> None:
        """Run one call here and see to its answer. Never raises. Pool thread.

        Not if nobody waits for it any more (RPC-2); later, if its caller does not read
        its answers (RPC-8).

        Args:
            call: The call, its body still encoded.
            served: What its function may know of it.
            done: Called once, when the function and what it returned have ended.
        """
        is_cancelled = served.cancelled
        admission = self._rooms.start(call, is_cancelled=is_cancelled)
        if admission is _WAITS:
            served.enter(Stage.PARKED)
            self._rooms.park(call, partial(self.serve, call, served, done))
            return
        answer = Answer(
            self._worker, self._endpoint, self._watcher, call, served, self.served
        )
        if is_cancelled or admission is _ENDS:
            if not self._is_closed:  # else the caller learns that we left
                answer.expire()
            done(served)
        else:
            run_isolated(self._serve_here, call, answer, served, done)

    def _serve_here(
        self,
        call: IncomingCall,
        answer: Answer,
        served: ServedCall,
        done: Callable[[ServedCall], None],
    ) -> None:
        follows = False
        served.enter(Stage.RUNNING)
        serve_in_context(served)  # which is this call's own
        try:
            scope = enter_scope(self._lease)
            try:
                follows = self._run(call, answer, served, scope, done)
            finally:
                scope.leave()
        except BaseException as error:  # noqa: BLE001 - travels to the caller
            answer.fail(error)
        finally:
            if not follows:
                done(served)

    def _run(
        self,
        call: IncomingCall,
        answer: Answer,
        served: ServedCall,
        scope: Scope,
        done: Callable[[ServedCall], None],
    ) -> bool:
        """Run one call; whether a future that it returned is still to end."""
        request = None if call.buffers else decode_plain_request(call.body)
        if request is None:
            request = self._decode(call, scope)
        name, args, kwargs = request
        served.function = name
        exposed = self._exposed.find(name, self._worker)
        order = self.order if exposed.is_ordered else None
        before = order.marks() if order is not None else self.order.joined
        if before or exposed.marks:
            scope.follow((*exposed.marks, *before))
        prepared = None
        try:
            result = exposed.function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = self._drive(result, answer, served)
            if not isinstance(result, Future):
                prepared = answer.encode(result)
        finally:
            # Also what a function launched that raised, or whose result is refused.
            launched = scope.record(())
            if launched and order is not None:
                order.note(launched)
        if prepared is not None:
            answer.send(prepared)
            return False
        served.enter(Stage.FOLLOWING)
        future: Future[Any] = result
        follow = partial(self._follow, future, answer, order, partial(done, served))
        add_hook(future, lambda _future, _where: _callbacks.run_on_pool(follow))
        return True

    def _decode(
        self, call: IncomingCall, scope: Scope
    ) -> tuple[str, list[Any], dict[str, Any]]:
        request = decode(
            call.body,
            call.buffers,
            place=place_in(scope, partial(self._placement.locate, call.sender_rank)),
            outer_depth=REQUEST_DEPTH,
        )
        match request:
            case [str() as name, list() as args, dict() as kwargs]:
                return name, args, kwargs
            case _:
                raise DecodeError("a call must be [name, args, kwargs]")

    def _drive(
        self, coroutine: Coroutine[Any, Any, Any], answer: Answer, served: ServedCall
    ) -> Future[Any]:
        """Run what an `async def` returned; its future covers what it launched."""
        future: Future[Any] = Future()
        bind_work(future, find_site(), f"async def {answer.function}")

        def finish(completion: Completion) -> None:
            complete(future, completion, _callbacks.run_on_pool)

        # Not the future is cancelled: it ends when the coroutine did, with its marks.
        served.add_cancel_callback(run_coroutine(coroutine, finish, answer.origin))
        if self._is_closed:
            served.cancel()
        return future

    def close(self) -> None:
        """Cancel all calls that are not answered yet. Does not wait. Idempotent."""
        self._is_closed = True
        for served in self.served.all():
            served.cancel()

    def _follow(
        self,
        future: Future[Any],
        answer: Answer,
        order: DeviceOrder | None,
        done: Callable[[], None],
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
        finally:
            done()
