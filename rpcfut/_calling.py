"""The caller's half of a call: encodes it, opens it, and ties a future to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rpcfut._call_info import CallInfo, find_place
from rpcfut._capture import refuse_capture
from rpcfut._codec import encode, encode_plain_request
from rpcfut._errors import (
    CallRefusedError,
    LifecycleError,
    Origin,
    RpcError,
    RpcTimeoutError,
)
from rpcfut._future_core import now_s
from rpcfut._reply import Limit, Reply, Side, kind_of_loss
from rpcfut._room import refusal, reserve_all, wait_for_room
from rpcfut._serving import call_in_service
from rpcfut._staging import Staging
from rpcfut._streams import used_devices
from rpcfut._wire_codes import REQUEST_DEPTH
from rpcfut_transport import (
    ClosedError,
    PeerLost,
    QueueFull,
    TransportError,
    message_nbytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from rpcfut._codec import Encoded
    from rpcfut._exposed import ExposedTable
    from rpcfut._future import Future
    from rpcfut._placement import Placement
    from rpcfut._streams import Mark
    from rpcfut._watcher import DeviceWatcher
    from rpcfut._workers import WorkerInfo
    from rpcfut_transport import Endpoint, Ticket

T = TypeVar("T")
_NO_LIMIT: Final = Limit(None)


class Caller:
    """Makes the calls of one agent. Any thread.

    Args:
        worker: The agent's name.
        endpoint: Takes the calls.
        exposed: Knows the names of functions.
        watcher: Sends calls that wait for a device.
        placement: Says where arrays in answers arrive.
        timeout_s: Deadline of calls that name none, in seconds; None for no deadline.
        may_block: Whether a call that finds no room waits for it (RPC-8).
    """

    def __init__(  # noqa: PLR0913 - the parts of an agent that a call meets
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
        placement: Placement,
        timeout_s: float | None,
        *,
        may_block: bool,
    ) -> None:
        self._may_block = may_block
        self._side = Side(worker, endpoint, placement)
        self._exposed = exposed
        self._watcher = watcher
        self._timeout_s = timeout_s

    def call(
        self,
        workers: Sequence[WorkerInfo],
        function: str | Callable[..., T],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        timeout: float | None,
    ) -> list[Future[T]]:
        """Call a function on workers, encoding once; see `rpcfut.rpc_async`.

        Returns:
            A future per worker, in their order. That of a worker which is known to be
            gone, or for which there was no room in time, has failed.

        Raises:
            QueueFullError: When there is no room and this agent, or this thread, does
                not wait for it; no call is open then.
        """
        used = used_devices()
        if used:
            refuse_capture(used, "rpc_async()")
        limit = self._limit(timeout)
        name = self._exposed.name_of(function)
        site = find_place(3)
        request = encode_plain_request(name, args, kwargs)
        marks: Sequence[Mark] = ()
        if request is None:
            staging = Staging()
            names = ", ".join(worker.name for worker in workers)
            about = CallInfo(
                worker=self._side.worker, to=names, function=name, site=site
            )
            request = _encode_request(name, args, kwargs, staging, about)
            marks = staging.marks()
        if len(workers) == 1:
            return [self._open(workers[0], name, site, request, marks, limit)]
        return self._open_many(workers, name, site, request, marks, limit)

    def _open_many(
        self,
        workers: Sequence[WorkerInfo],
        name: str,
        site: tuple[CodeType, int],
        request: Encoded,
        marks: Sequence[Mark],
        limit: Limit,
    ) -> list[Future[Any]]:
        """Open a call to each worker, or to none."""
        since_s = now_s()
        futures: list[Future[Any]] = []
        with ExitStack() as undo:
            tickets: Sequence[Ticket | None] = [None] * len(workers)
            if not self._may_block:
                rooms, nbytes = self._side.endpoint.rooms, message_nbytes(*request)
                tickets = reserve_all(rooms, workers, nbytes, name, undo)
            for worker, ticket in zip(workers, tickets, strict=True):
                left = limit.after(now_s() - since_s) if futures else limit
                future = self._open(worker, name, site, request, marks, left, ticket)
                undo.callback(future.cancel)  # if there is no room for another
                futures.append(future)
            undo.pop_all()
        return futures

    def _open(  # noqa: PLR0913, PLR0917 - no object for each call
        self,
        worker: WorkerInfo,
        name: str,
        site: tuple[CodeType, int],
        request: Encoded,
        marks: Sequence[Mark],
        limit: Limit,
        ticket: Ticket | None = None,
    ) -> Future[Any]:
        """Open one call, and send it once the copies of its arguments have passed."""
        reply: Reply[Any] = Reply(self._side, worker, name, site, limit)
        future = reply.begin()
        if limit.timeout_s == 0.0 and limit.inherited is not None:
            text = f"cannot call {reply}: there is no time left of {limit}"
            return _failed(reply, future, RpcTimeoutError(text))
        rank = worker.rank
        try:
            try:
                self._send(rank, limit.timeout_s, reply, request, marks, ticket)
            except QueueFull as full:
                self._send_in_turn(rank, limit, reply, request, marks, full)
        except PeerLost as error:
            text = f"cannot call {reply}: {error}"
            return _failed(reply, future, kind_of_loss(error)(text))
        except ClosedError as error:
            raise LifecycleError(f"cannot call {reply}: {error}") from error
        except TransportError as error:
            raise CallRefusedError(f"cannot call {reply}: {error}") from error
        except RpcTimeoutError as error:
            return _failed(reply, future, error)
        except BaseException:  # an interrupt: nobody will wait for this call
            self._side.endpoint.abandon_call(reply.call_id)
            raise
        return future

    def _send(
        self,
        rank: int,
        timeout_s: float | None,
        reply: Reply[Any],
        request: Encoded,
        marks: Sequence[Mark],
        ticket: Ticket | None,
    ) -> None:
        """Open a call and send it, or have the watcher send it.

        Raises:
            QueueFull: When there is no room; no call is open then.
        """
        endpoint = self._side.endpoint
        if not marks:
            reply.is_sent = True
            endpoint.call(rank, timeout_s, reply, *request, ticket=ticket)
            return
        nbytes = message_nbytes(*request)
        endpoint.open_call(rank, timeout_s, reply, nbytes, ticket=ticket)
        self._send_behind(marks, reply, request)

    def _send_in_turn(
        self,
        rank: int,
        limit: Limit,
        reply: Reply[Any],
        request: Encoded,
        marks: Sequence[Mark],
        full: QueueFull,
    ) -> None:
        """Wait for room for a call, then open and send it.

        Raises:
            QueueFullError: When it must not wait.
            RpcTimeoutError: When there is no room in time.
        """
        if not self._may_block:
            raise refusal(reply, full) from None
        rooms = self._side.endpoint.rooms
        until_s = None if limit.timeout_s is None else now_s() + limit.timeout_s
        while True:
            ticket = wait_for_room(self._side.endpoint, rank, reply, full, until_s)
            left_s = None if until_s is None else until_s - now_s()
            try:
                if ticket is None or (left_s is not None and left_s <= 0):
                    text = f"no room in {limit} for {reply}, which was not sent"
                    raise RpcTimeoutError(f"{text}: {rooms.no_room(rank, full.nbytes)}")
                self._send(rank, left_s, reply, request, marks, ticket)
            except QueueFull:
                continue  # the worker was restarted meanwhile
            finally:
                if ticket is not None:
                    rooms.give_back(rank, ticket)  # unless it was used
            return

    def _send_behind(
        self, marks: Sequence[Mark], reply: Reply[Any], request: Encoded
    ) -> None:
        endpoint = self._side.endpoint

        def send() -> None:
            reply.is_sent = True
            endpoint.send_call(reply.call_id, *request)

        self._watcher.when_passed(
            marks, send, lambda error: self._fail_unsent(reply, error)
        )

    def _fail_unsent(self, reply: Reply[Any], error: Exception) -> None:
        if self._side.endpoint.abandon_call(reply.call_id):
            reply.on_unsent(error)

    def _limit(self, timeout: float | None) -> Limit:
        """How long a call may take, by its own timeout and that of the one served."""
        if timeout is not None:
            _check_timeout(timeout)
        timeout_s = timeout if timeout is not None else self._timeout_s
        served = call_in_service()
        left_s = served.remaining_s if served is not None else None
        if left_s is None or (timeout_s is not None and timeout_s <= left_s):
            return _NO_LIMIT if timeout_s is None else Limit(timeout_s)
        return Limit(left_s, f"the {left_s:.3f} s that were left for {served}")


def _failed(reply: Reply[T], future: Future[T], error: RpcError) -> Future[T]:
    """The future of a call that was never opened."""
    reply.on_unsent(error)
    return future


def _check_timeout(timeout: object) -> None:
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not timeout >= 0:  # type: ignore[operator]
        raise CallRefusedError(
            "timeout must be a number of seconds from 0 on, or None for no deadline of "
            f"its own, got {timeout!r}"
        )


def _encode_request(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    staging: Staging,
    about: CallInfo,
) -> Encoded:
    """Encode a call; a failure names the argument by its path.

    Raises:
        CallRefusedError: When `args` is no tuple or list.
        EncodeError: When an argument cannot travel.
        ExtractionError: When one holds a type that nobody knows.
    """
    if not isinstance(args, (tuple, list)):
        raise CallRefusedError(
            f"args must be a tuple or list of arguments, got {args!r}; for one "
            "argument write args=(x,)"
        )
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise CallRefusedError(
            f"kwargs must be a dict from names to arguments, got {kwargs!r}"
        )
    request = [name, list(args), dict(kwargs or {})]
    try:
        encoded = encode(
            request,
            stage=staging.stage,
            root="the call",
            outer_depth=REQUEST_DEPTH,
        )
    except Exception as error:  # noqa: BLE001 - raised again, better or as it is
        failed = error
    else:
        return encoded
    for root, part in (("args", args), ("kwargs", kwargs or {})):
        origin = Origin(
            what=f"the arguments of {name}",
            path_root=root,
            worker=about.worker,
            call=str(about),
        )
        # Says where it failed.
        encode(part, stage=staging.stage, origin=origin, outer_depth=REQUEST_DEPTH - 1)
    raise failed
