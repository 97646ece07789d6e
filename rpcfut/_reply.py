"""The caller's side of one call: turns what comes back into the future's outcome."""

from __future__ import annotations

import logging
import threading
from collections import deque
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
from rpcfut._future_core import complete, now_s
from rpcfut._outcome import Value, failure_of
from rpcfut._own_streams import own_streams, place_in
from rpcfut._staging import place
from rpcfut_transport import PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._call_info import CallInfo
    from rpcfut._own_streams import Locate
    from rpcfut_transport import ClosedError

T = TypeVar("T")
_log = logging.getLogger("rpcfut.agent")

# First bytes of msgpack values that hold nothing: nil, booleans, numbers.
_PLAIN = frozenset(
    {*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xCA, 0xD4), *range(0xE0, 0x100)}
)


class Reply(Generic[T]):
    """The sink of one call; the reader thread calls it, the pool decodes.

    Args:
        about: The call, for messages.
        limit: The call's deadline, in words.
        locate: Says where arrays in the answer arrive.
    """

    __slots__ = (
        "__weakref__",
        "_about",
        "_askers",
        "_limit",
        "_locate",
        "_told",
        "future",
        "is_sent",
    )

    def __init__(self, about: CallInfo, limit: str, locate: Locate) -> None:
        self._about = about
        self._limit = limit
        self._locate = locate
        self._told: tuple[str, float] | None = None  # where the call was, and when
        self._askers: deque[threading.Event] = deque()  # wait to be told
        self.is_sent = False
        self.future: Future[T] = Future()

    def on_told(self, text: str) -> None:
        """Keep what the callee says of where the call is, for `explain`."""
        self._told = text, now_s()
        while self._askers:
            self._askers.popleft().set()

    def on_slow(self) -> None:
        """Log that the call takes long; on the pool, since the callee is asked."""
        _callbacks.run_on_pool(self._log_slow)

    def _log_slow(self) -> None:
        _log.warning("a call is pending for a minute: %s", self.future.explain())

    def ask(self, send: Callable[[], bool], patience_s: float) -> str:
        """Say where the call is; the callee may take `patience_s` to say it."""
        if not self.is_sent:
            return "it was not sent: a device has to copy its arguments first"
        news = threading.Event()
        self._askers.append(news)
        if not send():
            return "it has just ended"
        if patience_s > 0 and news.wait(patience_s) and self._told is not None:
            return f"there it is {self._told[0]}"
        return f"worker {self._about.to!r} does not say where it is"

    def on_result(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        """Decode the value: on the pool if that may run user code or touch a device."""
        if body and body[0] in _PLAIN:
            self._decode_plain(body, buffers)
        else:
            _callbacks.run_on_pool(lambda: self._decode_on_streams(body, buffers))

    def on_error(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        """Fail with the error that the callee sent; without one, it was too late."""
        del buffers
        if not body:
            text = f"worker {self._about.to!r} did not start {self._about}: by its "
            self.fail(RpcTimeoutError(f"{text}clock, {self._limit} had passed"))
            return
        _callbacks.run_on_pool(lambda: self.fail(decode_error(body, self._about)))

    def on_lost(self, error: PeerLost | ClosedError) -> None:
        """Fail: no answer will come."""
        kind = PeerLostError if isinstance(error, PeerLost) else LifecycleError
        self.fail(kind(f"no answer from {self._about}: {error}"))

    def on_timeout(self) -> None:
        """Fail: the deadline passed. The callee was asked a moment before."""
        if not self.is_sent:
            where = "it was not sent: a device had to copy its arguments first"
        elif self._told is None:
            where = f"worker {self._about.to!r} did not say where it is"
        else:
            stage, at_s = self._told
            where = f"{now_s() - at_s:.3f} s before that, it was there: {stage}"
        text = f"no answer after {self._limit} from {self._about}; {where}"
        self.fail(RpcTimeoutError(text))

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
