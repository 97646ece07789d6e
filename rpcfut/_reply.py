"""The caller's side of one call: turns what comes back into the future's outcome."""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from rpcfut import _callbacks
from rpcfut._call_info import PendingCall
from rpcfut._codec import NOT_PLAIN, decode, decode_plain
from rpcfut._completion import Completion, completion_of
from rpcfut._error_codec import decode_error
from rpcfut._errors import (
    AuthenticationError,
    LifecycleError,
    MessageLostError,
    Origin,
    PeerLostError,
    RpcError,
    RpcTimeoutError,
)
from rpcfut._future import Future
from rpcfut._future_binding import bind_call, make_future
from rpcfut._future_core import complete, now_s
from rpcfut._outcome import Value, failure_of
from rpcfut._own_streams import own_streams, place_in
from rpcfut_transport import AuthenticationError as WrongKey
from rpcfut_transport import CallNote, MessageLost, PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from rpcfut._placement import Placement
    from rpcfut._workers import WorkerInfo
    from rpcfut_transport import ClosedError, Endpoint, Inbox, Work

T = TypeVar("T")
_log = logging.getLogger("rpcfut.agent")
_asking = threading.Lock()  # few ask, so calls have no lock of their own
_NONE: Final = Value(None)  # the value of most calls; never changed
_NEW: Final[Any] = tuple.__new__  # Completion() takes twice as long


class Limit(NamedTuple):
    """How long a call may take.

    Args:
        timeout_s: Seconds; None for ever.
        inherited: The same in words, if it is what is left of the call that is served
            here.
    """

    timeout_s: float | None
    inherited: str | None = None

    def after(self, seconds: float) -> Limit:
        """What is left of it after some time."""
        if self.timeout_s is None:
            return self
        return Limit(max(0.0, self.timeout_s - seconds), str(self))

    def __str__(self) -> str:
        if self.inherited is not None:
            return self.inherited
        return "its deadline" if self.timeout_s is None else f"{self.timeout_s} s"


class Side(NamedTuple):
    """What all calls of one worker share.

    Args:
        worker: Its name.
        endpoint: Sends them.
        placement: Says where arrays in answers arrive.
    """

    worker: str
    endpoint: Endpoint
    placement: Placement


class Reply(PendingCall, Generic[T]):
    """The sink of one call, and what its future knows of it.

    The reader tells it how the call ends; what may run user code or touch a device is
    left as work. It holds the future until that is done, and the future holds it.

    Args:
        side: Who calls.
        to: Whom.
        function: What.
        site: The place in the code.
        limit: The call's deadline.
    """

    __slots__ = (
        "__weakref__",
        "_askers",
        "_future",
        "_limit",
        "_side",
        "_to_rank",
        "_told",
        "call_id",
        "is_sent",
    )

    def __init__(
        self,
        side: Side,
        to: WorkerInfo,
        function: str,
        site: tuple[CodeType, int],
        limit: Limit,
    ) -> None:
        self.worker = side.worker
        self.to = to.name
        self.function = function
        self._site = site
        self._to_rank = to.rank
        self._limit = limit
        self._side = side
        self._told: tuple[str, float] | None = None  # where the call was, and when
        self._askers: deque[threading.Event] | None = None  # wait to be told
        self.is_sent = False
        self.call_id = 0  # until it is opened
        self._future: Future[T] | None = make_future(Future, site)

    def begin(self) -> Future[T]:
        """Tie the future to its call, and return it."""
        future = self._future
        assert future is not None
        bind_call(future, self)
        return future

    @property
    def inbox(self) -> Inbox:
        """Where the answer arrives."""
        return self._side.endpoint.inbox

    def give_up(self) -> None:
        """Take note that nobody waits for the answer."""
        self._future = None
        self._side.endpoint.abandon_call(self.call_id)

    # ---- where it is ----------------------------------------------------------------

    def on_told(self, text: str) -> None:
        """Keep what the callee says of where the call is, for `explain`."""
        self._told = text, now_s()
        askers = self._askers
        while askers:
            askers.popleft().set()

    def on_slow(self) -> None:
        """Log that the call takes long; on the pool, since the callee is asked."""
        _callbacks.run_on_pool(self._log_slow)

    def _log_slow(self) -> None:
        future = self._future
        if future is not None:
            _log.warning("a call is pending for a minute: %s", future.explain())

    def ask(self, patience_s: float) -> str:
        """Say where the call is; the callee may take `patience_s` to say it."""
        if self._future is None:
            return "it has just ended"
        if not self.is_sent:
            return "it was not sent: a device has to copy its arguments first"
        news = threading.Event()
        with _asking:
            if self._askers is None:
                self._askers = deque()
        self._askers.append(news)
        if not self._side.endpoint.ask(self.call_id):
            return "it has just ended"
        if patience_s > 0 and news.wait(patience_s) and self._told is not None:
            return f"there it is {self._told[0]}"
        return f"worker {self.to!r} does not say where it is"

    def describe(self) -> CallNote:
        """Say which call this is and how far it got. Any thread; takes no lock."""
        told = self._told
        if not self.is_sent:
            stage = "not sent: a device has to copy its arguments first"
        elif told is None:
            stage = "sent"
        else:
            stage = f"sent; {now_s() - told[1]:.1f} s ago it was there: {told[0]}"
        return CallNote(self.function, self.site, stage)

    # ---- how it ends ----------------------------------------------------------------

    def on_result(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> Work | None:
        """Take the value; what may run user code or touch a device is left as work."""
        if not buffers:
            value = decode_plain(body)
            if value is not NOT_PLAIN:
                outcome = _NONE if value is None else Value(value)
                return self._end(_NEW(Completion, (outcome, (), ())))
        return partial(self._decode_on_streams, body, buffers)

    def on_error(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> Work | None:
        """Fail with the error that the callee sent; without one, it was too late."""
        del buffers
        if not body:
            text = f"worker {self.to!r} did not start {self}: by its clock, "
            return self.fail(RpcTimeoutError(f"{text}{self._limit} had passed"))
        return partial(self._decode_error, body)

    def on_lost(self, error: PeerLost | MessageLost | ClosedError) -> None:
        """Fail: no answer will come."""
        kind = kind_of_loss(error)
        _run_soon(self.fail(kind(f"no answer from {self}: {error}")))

    def on_timeout(self) -> None:
        """Fail: the deadline passed. The callee was asked a moment before."""
        if not self.is_sent:
            where = "it was not sent: a device had to copy its arguments first"
        elif self._told is None:
            where = f"worker {self.to!r} did not say where it is"
        else:
            stage, at_s = self._told
            where = f"{now_s() - at_s:.3f} s before that, it was there: {stage}"
        text = f"no answer after {self._limit} from {self}; {where}"
        _run_soon(self.fail(RpcTimeoutError(text)))

    def on_unsent(self, error: BaseException) -> None:
        """Fail: the call was not sent."""
        _run_soon(self.fail(error))

    def fail(self, error: BaseException) -> Work | None:
        """Fail the future; returns its callbacks, as work."""
        return self._end(Completion(failure_of(error)))

    def _end(self, completion: Completion) -> Work | None:
        """Complete the future; returns its callbacks, as work."""
        future, self._future = self._future, None
        if future is None:
            return None
        later: list[Callable[[], None]] = []
        complete(future, completion, lambda *tasks: later.extend(tasks))
        return partial(_callbacks.run_here, *later) if later else None

    def _decode_error(self, body: memoryview) -> None:
        self._end_here(Completion(failure_of(decode_error(body, self))))

    def _decode_on_streams(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> None:
        try:
            locate = partial(self._side.placement.locate, self._to_rank)
            with own_streams() as scope:
                value = decode(body, buffers, place=place_in(scope, locate))
                completion = completion_of(value, None, self._origin, scope.record)
        except BaseException as error:  # noqa: BLE001 - a device failed; not lost
            completion = Completion(failure_of(error))
        self._end_here(completion)

    def _end_here(self, completion: Completion) -> None:
        """Complete the future, and run its callbacks here. Pool thread."""
        work = self._end(completion)
        if work is not None:
            work()

    def _origin(self) -> Origin:
        return Origin(
            what=f"the answer to {self.function}",
            path_root="result",
            worker=self.worker,
            call=str(self),
        )


def _run_soon(work: Work | None) -> None:
    if work is not None:
        _callbacks.run_on_pool(work)


def kind_of_loss(error: PeerLost | MessageLost | ClosedError) -> type[RpcError]:
    """Which error of ours says that a call to a peer came to nothing."""
    if isinstance(error, WrongKey):
        return AuthenticationError
    if isinstance(error, MessageLost):
        return MessageLostError
    return PeerLostError if isinstance(error, PeerLost) else LifecycleError
