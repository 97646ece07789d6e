"""The answer to one call: encoded, sent once, whatever goes wrong (RPC-3)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._codec import encode
from rpcfut._error_codec import FALLBACK_BODY, encode_error
from rpcfut._error_text import describe
from rpcfut._errors import Origin
from rpcfut._own_streams import own_streams
from rpcfut._staging import Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut._future import Future
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Buffer, Endpoint, IncomingCall

_log = logging.getLogger("rpcfut.dispatch")


class Answer:
    """The answer to one call; sent once.

    Args:
        worker: Name of this worker.
        endpoint: Takes the answer.
        watcher: Sends an answer that waits for a device.
        call: The call.
        caller: Name of the worker that sent it.
    """

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
