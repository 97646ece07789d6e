"""The caller's side of one call: turns what comes back into the future's outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from rpcfut import _callbacks
from rpcfut._codec import decode
from rpcfut._completion import Completion, completion_of
from rpcfut._error_codec import decode_error
from rpcfut._errors import (
    DecodeError,
    LifecycleError,
    Origin,
    PeerLostError,
    RpcTimeoutError,
)
from rpcfut._future import Future
from rpcfut._future_core import complete
from rpcfut._outcome import Value, failure_of
from rpcfut._own_streams import own_streams, place_in
from rpcfut._staging import place
from rpcfut_transport import PeerLost

if TYPE_CHECKING:
    from rpcfut._call_info import CallInfo
    from rpcfut._own_streams import Locate
    from rpcfut_transport import ClosedError

T = TypeVar("T")

# First bytes of msgpack values that hold nothing: nil, booleans, numbers.
_PLAIN = frozenset(
    {*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xCA, 0xD4), *range(0xE0, 0x100)}
)


class Reply(Generic[T]):
    """The sink of one call; the reader thread calls it, the pool decodes.

    Args:
        about: The call, for messages.
        timeout_s: The call's deadline, for the message.
        locate: Says where arrays in the answer arrive.
    """

    __slots__ = ("_about", "_locate", "_timeout_s", "future")

    def __init__(
        self, about: CallInfo, timeout_s: float | None, locate: Locate
    ) -> None:
        self._about = about
        self._locate = locate
        self._timeout_s = timeout_s
        self.future: Future[T] = Future()

    def on_result(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        """Decode the value: on the pool if that may run user code or touch a device."""
        if body and body[0] in _PLAIN:
            self._decode_plain(body, buffers)
        else:
            _callbacks.run_on_pool(lambda: self._decode_on_streams(body, buffers))

    def on_error(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        """Fail with the error that the callee sent."""
        del buffers
        _callbacks.run_on_pool(lambda: self.fail(decode_error(body, self._about)))

    def on_lost(self, error: PeerLost | ClosedError) -> None:
        """Fail: no answer will come."""
        kind = PeerLostError if isinstance(error, PeerLost) else LifecycleError
        self.fail(kind(f"no answer from {self._about}: {error}"))

    def on_timeout(self) -> None:
        """Fail: the deadline passed."""
        after = "its deadline" if self._timeout_s is None else f"{self._timeout_s} s"
        self.fail(RpcTimeoutError(f"no answer after {after} from {self._about}"))

    def fail(self, error: BaseException) -> None:
        """Fail the future."""
        complete(self.future, Completion(failure_of(error)), _callbacks.run_on_pool)

    def _decode_plain(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> None:
        try:
            completion = Completion(Value(decode(body, buffers, place=place)))
        except DecodeError as error:
            completion = Completion(failure_of(error))
        complete(self.future, completion, _callbacks.run_on_pool)

    def _decode_on_streams(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> None:
        try:
            with own_streams() as scope:
                value = decode(body, buffers, place=place_in(scope, self._locate))
                completion = completion_of(value, None, self._origin, scope.record)
        except BaseException as error:  # noqa: BLE001 - a device failed; not lost
            completion = Completion(failure_of(error))
        complete(self.future, completion, _callbacks.run_after)

    def _origin(self) -> Origin:
        return Origin(
            what=f"the answer to {self._about.function}",
            path_root="result",
            worker=self._about.worker,
            call=str(self._about),
        )
