"""The answer to one call: encoded, sent once, whatever goes wrong (RPC-3)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcfut._codec import encode, encode_plain
from rpcfut._error_codec import FALLBACK_BODY, encode_error
from rpcfut._error_text import describe
from rpcfut._errors import Origin
from rpcfut._serving import Stage
from rpcfut._staging import Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut._codec import Encoded
    from rpcfut._served import ServedTable
    from rpcfut._serving import ServedCall
    from rpcfut._streams import Mark
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Buffer, Endpoint, IncomingCall

_log = logging.getLogger("rpcfut.dispatch")


class Prepared(NamedTuple):
    """A result that is ready to be sent once `marks` have passed."""

    encoded: Encoded
    marks: Sequence[Mark]


class Answer:
    """The answer to one call; sent once.

    Args:
        worker: Name of this worker.
        endpoint: Takes the answer.
        watcher: Sends an answer that waits for a device.
        call: The call.
        served: What is known of it.
        table: Forgets it when it is answered.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        watcher: DeviceWatcher,
        call: IncomingCall,
        served: ServedCall,
        table: ServedTable,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._watcher = watcher
        self._call = call
        self._served = served
        self._table = table

    @property
    def function(self) -> str:
        """The name that the caller used."""
        return self._served.function or "a function whose name did not decode"

    def encode(self, result: Any) -> Prepared:
        """Encode the result, and queue its copies on the current streams.

        Raises:
            EncodeError: When the result cannot travel.
            ExtractionError: When it holds a type that nobody knows.
        """
        plain = encode_plain(result)
        if plain is not None:
            return Prepared(plain, ())
        staging = Staging()
        encoded = encode(result, stage=staging.stage, origin=self.origin())
        return Prepared(encoded, staging.marks())

    def send(self, prepared: Prepared) -> None:
        """Send a result behind its copies. Does not wait for them."""
        if not prepared.marks:
            self._send(*prepared.encoded)
            return
        self._served.enter(Stage.ANSWERING)
        self._watcher.when_passed(
            prepared.marks, lambda: self._send(*prepared.encoded), self.fail
        )

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
                self._served.caller,
                describe(failure),
            )
        elif _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s failed: %s", self._served, describe(error))

    def expire(self) -> None:
        """Say that the function was not called, since nobody waits for it."""
        self._send(b"", (), is_error=True)

    def _send(
        self, body: Buffer, buffers: Sequence[Buffer], *, is_error: bool = False
    ) -> None:
        call = self._call
        self._served.end()
        # Here until the link has it: a peer that is told otherwise gives the call up.
        self._endpoint.reply(call, is_error=is_error, body=body, buffers=buffers)
        self._table.remove(call.sender_rank, call.call_id, self._served)

    def origin(self) -> Origin:
        """What is returned, in words."""
        return Origin(
            what=f"the return value of {self.function}",
            path_root="result",
            worker=self._worker,
            call=f"{self.function}, called by worker {self._served.caller!r}",
        )
