"""The call that the running code serves: what a function that a peer called may ask.

It is found by a context variable, so it is right in coroutines, in what they spawn, and
in the callbacks that were registered while it ran.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from rpcfut._errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger("rpcfut.dispatch")


class Clock(Protocol):
    """What measures deadlines."""

    def now_s(self) -> float:
        """Seconds since some fixed moment."""
        ...


class Stage(Enum):
    """Where a served call is, in words that end with its age."""

    QUEUED = "queued"
    PARKED = "parked: too many answers wait for the caller to read them"
    RUNNING = "running"
    FOLLOWING = "its function returned a future or a coroutine; waiting for that"
    ANSWERING = "its function has ended; waiting for a device to copy the result"


class ServedView(NamedTuple):
    """A served call, for reports.

    Args:
        caller: Name of the worker that called.
        function: What it called; empty before the arguments are decoded.
        request: The call as it came, to look up its function until then; None once it
            is answered.
        age_s: For how long it has been here, in seconds.
        left_s: How long the caller will still wait, in seconds; None for ever.
        stage: Where it is, and since when.
        thread: The identifier of the thread that runs its function now, if one does.
    """

    caller: str
    function: str
    request: memoryview | None
    age_s: float
    left_s: float | None
    stage: str
    thread: int | None


class ServedCall:
    """A call that this worker serves. Any thread.

    Args:
        caller: Name of the worker that called.
        deadline_s: When the caller stops waiting, on `clock`; None for never.
        clock: What that is measured on.
        request: The call as it came, to look up its function before it is decoded.
    """

    __slots__ = (
        "_arrived_s",
        "_clock",
        "_deadline_s",
        "_hooks",
        "_is_cancelled",
        "_lock",
        "_request",
        "_since_s",
        "_stage",
        "_thread",
        "caller",
        "function",
    )

    def __init__(
        self,
        caller: str,
        deadline_s: float | None,
        clock: Clock,
        request: memoryview | None = None,
    ) -> None:
        self.caller = caller
        self.function = ""  # not known before the arguments are decoded
        self._deadline_s = deadline_s
        self._clock = clock
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._hooks: list[Callable[[], object]] | None = None
        self._thread: int | None = None
        self._stage, self._arrived_s = Stage.QUEUED, clock.now_s()
        self._since_s = self._arrived_s
        self._request = request

    def __repr__(self) -> str:
        name = self.function or "a call"
        return f"<ServedCall {name} for {self.caller!r}: {self.describe()}>"

    def __str__(self) -> str:
        return f"{self.function or 'a call'}, called by worker {self.caller!r}"

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more.

        The caller cancelled it, gave it up at its deadline, or is gone.
        """
        if self._is_cancelled or self._deadline_s is None:
            return self._is_cancelled
        return self.remaining_s == 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds that the caller will still wait, at least 0; None for no deadline.

        Calls that are made while this one is served wait no longer than that.
        """
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._clock.now_s())

    def add_cancel_callback(self, callback: Callable[[], object]) -> None:
        """Call something once the caller cancels; at once if it has.

        It runs on a thread that serves others and must not block. Deadlines do not
        call it.
        """
        with self._lock:
            if not self._is_cancelled:
                self._hooks = [*(self._hooks or ()), callback]
                return
        callback()

    def cancel(self) -> None:
        """Take note that nobody waits for the answer. Idempotent."""
        with self._lock:
            self._is_cancelled = True
            hooks, self._hooks = self._hooks, None
        for hook in hooks or ():
            try:
                hook()
            except Exception:  # noqa: BLE001 - logged; the others must hear of it too
                _log.exception("what was to run when %s is cancelled raised", self)

    def end(self) -> None:
        """Take note that it was answered: nothing can be cancelled any more.

        A coroutine's hook knows its task, whose context knows this call: a cycle.
        """
        self._request = None
        if self._hooks is not None:
            with self._lock:
                self._hooks = None

    def enter(self, stage: Stage) -> None:
        """Take note of where the call is now, on the thread that brought it there."""
        self._thread = threading.get_ident() if stage is Stage.RUNNING else None
        self._stage, self._since_s = stage, self._clock.now_s()

    def look(self) -> ServedView:
        """What reports show of it. Any thread; takes no lock."""
        now_s = self._clock.now_s()
        told = "; was told that nobody waits" if self._is_cancelled else ""
        return ServedView(
            caller=self.caller,
            function=self.function,
            request=self._request,
            age_s=now_s - self._arrived_s,
            left_s=self.remaining_s,
            stage=f"{self._stage.value}, since {now_s - self._since_s:.1f} s{told}",
            thread=self._thread,
        )

    def describe(self) -> str:
        """Where the call is, and since when, and on which thread."""
        age_s = self._clock.now_s() - self._since_s
        ident = self._thread
        names = [t.name for t in threading.enumerate() if t.ident == ident]
        on = f" on thread {names[0]!r}" if ident is not None and names else ""
        told = ", and was told that nobody waits" if self._is_cancelled else ""
        return f"{self._stage.value}, since {age_s:.3f} s{on}{told}"


_current: ContextVar[ServedCall | None] = ContextVar("rpcfut_call", default=None)


# The call that the running code serves, if any. Each callback asks twice.
call_in_service: Final = _current.get


def current_call() -> ServedCall:
    """The call that the running code serves.

    For functions that peers call, and what they await or register while they run: who
    called, how long the caller will still wait, and whether it still does::

        @rpcfut.expose
        def search(...):
            while not rpcfut.current_call().cancelled:
                ...

    Raises:
        LifecycleError: When no call is served here.
    """
    call = _current.get()
    if call is None:
        raise LifecycleError(
            "current_call() outside of a call: it is for functions that peers call, "
            "and for what they await or register while they run"
        )
    return call


def serve_in_context(call: ServedCall) -> None:
    """Let all that still runs in the calling context serve a call."""
    _current.set(call)


@contextmanager
def serving(call: ServedCall | None) -> Iterator[None]:
    """Let what is inside serve a call, or none."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
