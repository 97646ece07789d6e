"""The caller's half of a call: encodes it, opens it, and ties a future to its end."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rpcfut._call_info import CallInfo, call_site
from rpcfut._capture import refuse_capture
from rpcfut._codec import encode
from rpcfut._errors import (
    CallRefusedError,
    LifecycleError,
    Origin,
    PeerLostError,
    RpcError,
    RpcTimeoutError,
)
from rpcfut._future_binding import bind_call
from rpcfut._reply import Reply
from rpcfut._serving import call_in_service
from rpcfut._staging import Staging
from rpcfut._streams import used_devices
from rpcfut._wire_codes import REQUEST_DEPTH
from rpcfut_transport import ClosedError, PeerLost, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._codec import Encoded
    from rpcfut._exposed import ExposedTable
    from rpcfut._future import Future
    from rpcfut._placement import Placement
    from rpcfut._streams import Mark
    from rpcfut._watcher import DeviceWatcher
    from rpcfut._workers import WorkerInfo
    from rpcfut_transport import Endpoint

T = TypeVar("T")


class Caller:
    """Makes the calls of one agent. Any thread.

    Args:
        worker: The agent's name.
        endpoint: Takes the calls.
        exposed: Knows the names of functions.
        watcher: Sends calls that wait for a device.
        placement: Says where arrays in answers arrive.
        timeout_s: Deadline of calls that name none, in seconds; None for no deadline.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
        placement: Placement,
        timeout_s: float | None,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._exposed = exposed
        self._watcher = watcher
        self._placement = placement
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
            gone has failed.
        """
        refuse_capture(used_devices(), "rpc_async()")
        limit = self._limit(timeout)
        name = self._exposed.name_of(function)
        names = ", ".join(worker.name for worker in workers)
        about = CallInfo(worker=self._worker, to=names, function=name, site=call_site())
        staging = Staging()
        request = _encode_request(name, args, kwargs, staging, about)
        marks = staging.marks()
        return [self._open(w, about, request, marks, limit) for w in workers]

    def _open(
        self,
        worker: WorkerInfo,
        about: CallInfo,
        request: Encoded,
        marks: Sequence[Mark],
        limit: Limit,
    ) -> Future[Any]:
        """Open one call, and send it once the copies of its arguments have passed."""
        about = replace(about, to=worker.name)
        locate = partial(self._placement.locate, worker.rank)
        reply: Reply[Any] = Reply(about, limit.text, locate)
        if limit.timeout_s == 0.0 and limit.is_inherited:
            text = f"cannot call {about}: there is no time left of {limit.text}"
            return _failed(reply, about, RpcTimeoutError(text))
        try:
            call_id = self._endpoint.open_call(worker.rank, limit.timeout_s, reply)
        except PeerLost as error:
            return _failed(reply, about, PeerLostError(f"cannot call {about}: {error}"))
        except ClosedError as error:
            raise LifecycleError(f"cannot call {about}: {error}") from error
        except TransportError as error:
            raise CallRefusedError(f"cannot call {about}: {error}") from error
        endpoint = self._endpoint
        try:
            bind_call(
                reply.future,
                about,
                lambda: _ignore(endpoint.abandon_call(call_id)),
                # Held weakly, or the value would live until a garbage collection.
                partial(_ask, weakref.ref(reply), partial(endpoint.ask, call_id)),
            )

            def send() -> None:
                reply.is_sent = True
                endpoint.send_call(call_id, *request)

            self._watcher.when_passed(
                marks, send, lambda error: self._fail_unsent(call_id, reply, error)
            )
        except BaseException:  # an interrupt: nobody will wait for this call
            endpoint.abandon_call(call_id)
            raise
        return reply.future

    def _fail_unsent(self, call_id: int, reply: Reply[Any], error: Exception) -> None:
        if self._endpoint.abandon_call(call_id):
            reply.fail(error)

    def _limit(self, timeout: float | None) -> Limit:
        """How long a call may take, by its own timeout and that of the one served."""
        _check_timeout(timeout)
        timeout_s = timeout if timeout is not None else self._timeout_s
        served = call_in_service()
        left_s = served.remaining_s if served is not None else None
        if left_s is None or (timeout_s is not None and timeout_s <= left_s):
            text = "its deadline" if timeout_s is None else f"{timeout_s} s"
            return Limit(timeout_s, text, is_inherited=False)
        text = f"the {left_s:.3f} s that were left for {served}"
        return Limit(left_s, text, is_inherited=True)


def _ask(
    reply: weakref.ref[Reply[Any]], send: Callable[[], bool], patience_s: float
) -> str:
    """Say where a call is; the endpoint holds the reply of an open one."""
    held = reply()
    return "it has just ended" if held is None else held.ask(send, patience_s)


def _failed(reply: Reply[T], about: CallInfo, error: RpcError) -> Future[T]:
    """The future of a call that was never opened."""
    bind_call(reply.future, about, lambda: None, lambda _: "it was not sent")
    reply.fail(error)
    return reply.future


class Limit(NamedTuple):
    """How long a call may take.

    Args:
        timeout_s: Seconds; None for ever.
        text: The same in words.
        is_inherited: Whether it is what is left of the call that is served here.
    """

    timeout_s: float | None
    text: str
    is_inherited: bool


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
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


def _ignore(_: object) -> None:
    """Drop a result."""
