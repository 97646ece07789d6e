"""Runs what a peer calls, and answers it.

Every call ends in exactly one answer. Whatever goes wrong after the header was read, in
the arguments, in the function, in its result or in sending that, becomes an error
reply, and the worker lives (RPC-3, RPC-4).
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._codec import decode, encode
from rpcfut._error_codec import FALLBACK_BODY, encode_error
from rpcfut._error_text import describe
from rpcfut._errors import DecodeError, Origin
from rpcfut._future import Future
from rpcfut._future_core import add_hook, completion_of_done
from rpcfut._staging import Staging, place, require_device
from rpcfut._streams import enter_scope
from rpcfut._wire_codes import REQUEST_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from rpcfut._codec import Place
    from rpcfut._devices import Device
    from rpcfut._exposed import ExposedTable
    from rpcfut._streams import Scope
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Buffer, Endpoint, IncomingCall

_log = logging.getLogger("rpcfut.dispatch")


class Dispatcher:
    """Serves the calls of peers to one agent. `serve` runs on the agent's pool threads.

    Args:
        worker: The agent's name.
        endpoint: Takes the answers.
        exposed: What peers may call.
        watcher: Sends answers that wait for a device.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._exposed = exposed
        self._watcher = watcher

    def serve(self, call: IncomingCall, caller: str) -> None:
        """Run one call and see to its answer. Never raises.

        Args:
            call: The call, its body still encoded.
            caller: Name of the worker that sent it.
        """
        answer = _Answer(self._worker, self._endpoint, self._watcher, call, caller)
        try:
            with own_streams() as scope:
                self._run(call, answer, scope)
        except BaseException as error:  # noqa: BLE001 - travels to the caller
            answer.fail(error)

    def _run(self, call: IncomingCall, answer: _Answer, scope: Scope) -> None:
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
        function = self._exposed.find(name, self._worker)
        result = function(*args, **kwargs)
        if isinstance(result, Future):
            add_hook(result, lambda _future, _where: answer.follow(result))
        else:
            answer.succeed(result)


class _Answer:
    """The answer to one call; sent once. `serve` says who the arguments are."""

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        watcher: DeviceWatcher,
        call: IncomingCall,
        caller: str,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._watcher = watcher
        self._call = call
        self._caller = caller
        self.function = "a function whose name did not decode"

    def succeed(self, result: Any) -> None:
        """Encode the result on the current streams and send it behind its copies.

        Raises:
            EncodeError: When the result cannot travel.
            ExtractionError: When it holds a type that nobody knows.
        """
        staging = Staging()
        encoded = encode(result, stage=staging.stage, origin=self._origin())
        self._watcher.when_passed(
            staging.marks(),
            lambda: self._send(*encoded),
            self.fail,
        )

    def follow(self, future: Future[Any]) -> None:
        """Answer with what a future that the function returned ended with.

        Called on the thread that completes it, so the work goes to the pool.
        """

        def answer() -> None:
            try:
                with own_streams(future):
                    self.succeed(future.value())
            except BaseException as error:  # noqa: BLE001 - travels to the caller
                self.fail(error)

        _callbacks.run_on_pool(answer)

    def fail(self, error: BaseException) -> None:
        """Send an error, whatever it does when it is looked at (RPC-3)."""
        failure: BaseException | None = None
        try:
            body = encode_error(error, worker=self._worker, function=self.function)
        except BaseException as raised:  # noqa: BLE001 - logged once an answer is sent
            body, failure = FALLBACK_BODY, raised
        self._send(body, (), is_error=True)
        if failure is not None:
            _log.error(
                "%s failed for %s, and its error could not be encoded: %s",
                self.function,
                self._caller,
                describe(failure),
            )
        elif _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%s failed for %s: %s", self.function, self._caller, describe(error)
            )

    def _send(
        self, body: Buffer, buffers: Sequence[Buffer], *, is_error: bool = False
    ) -> None:
        self._endpoint.reply(self._call, is_error=is_error, body=body, buffers=buffers)

    def _origin(self) -> Origin:
        return Origin(
            what=f"the return value of {self.function}",
            path_root="result",
            worker=self._worker,
            call=f"{self.function}, called by worker {self._caller!r}",
        )


@contextmanager
def own_streams(future: Future[Any] | None = None) -> Iterator[Scope]:
    """Run what is inside on pool streams, behind the marks of a future if given.

    Devices that are not used yet get their stream when a value arrives there: see
    `place_in`.
    """
    done = completion_of_done(future) if future is not None else None
    scope = enter_scope(
        _callbacks.runtime().streams.lease,
        marks=done.marks if done is not None else (),
        refs=done.refs if done is not None else (),
    )
    try:
        yield scope
    finally:
        scope.leave()


def place_in(scope: Scope) -> Place:
    """What puts received tensors on their devices, on the scope's streams."""

    def place_on_stream(tensor: torch.Tensor, device: Device) -> torch.Tensor:
        require_device(device)
        scope.add((device,))
        return place(tensor, device)

    return place_on_stream
