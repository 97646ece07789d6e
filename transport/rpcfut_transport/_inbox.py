"""Who reads the messages of one worker: one thread at a time, and which.

Theory of operation. Handing a message from thread to thread costs more than all the
rest of a small call, so messages are read by whoever can use them. Reading is a *turn*:

* A thread that waits for an answer takes the turn and reads until the answer is there.
  On the way it files what is for others, but never runs user code, since it may hold
  the user's locks (RPC-6): such *work* goes to the crew.
* Else a thread of the crew has it, and runs what it read itself, without the turn.
* A waiter that comes while the crew reads has it step aside; one that comes while
  another waiter reads is given the turn when that one leaves, the newest first.

So the turn may be free for a moment: between two waits of one thread, and while a
handler runs. Mostly the same thread comes back at once. If not, a *watchdog* has the
crew read. It ticks only under traffic. When the crew has no thread left (all of them
wait inside handlers), the watchdog reads itself: control messages never wait for user
code.

Messages are filed in the order in which they were read, since who files has the turn.

Python looks for signals between bytecodes, and before it blocks, but not in between: a
signal that comes in that moment, or that another thread was given, ends no wait. So the
main thread blocks for a while only, and looks again.
"""

from __future__ import annotations

import logging
import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from rpcfut_transport._clock import MonotonicClock
from rpcfut_transport._errors import ClosedError, TransportError
from rpcfut_transport._watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._calls import Work
    from rpcfut_transport._crew import Crew

_log = logging.getLogger(__name__)
_now_s = MonotonicClock.now_s  # threads block in real time, whatever a clock says

_POLL_S = 0.001
_FREE_S = 0.0003  # for how long the turn must have been free at a tick
_MAX_PATIENCE = 2  # ticks for which nobody reads while readers do other work
_STAND_IN_S = 0.02
_FOREVER_S = -1.0
_LOOK_S = 0.5  # how often the main thread looks for signals


class Waiter:
    """One wait of one thread. Made by the thread that waits.

    Args:
        wake: Wakes whoever reads the inbox.
    """

    __slots__ = (
        "_gate",
        "_thread",
        "_wake",
        "has_turn",
        "is_done",
        "is_interrupted",
        "longest_s",
    )

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._gate = threading.Lock()
        self._gate.acquire()
        self._thread = threading.get_ident()
        is_main = self._thread == threading.main_thread().ident
        self.longest_s = _LOOK_S if is_main else math.inf  # that it blocks at a time
        self.has_turn = False
        self.is_done = False
        self.is_interrupted = False

    def __repr__(self) -> str:
        return (
            f"<Waiter done={self.is_done} turn={self.has_turn} "
            f"interrupted={self.is_interrupted}>"
        )

    def finish(self, *_: object) -> None:
        """End the wait. Any thread; does not block."""
        self.is_done = True
        if not self.has_turn:
            self.open()
        elif threading.get_ident() != self._thread:
            self._wake()

    def interrupt(self) -> None:
        """End the wait without its being done. Also inside a signal handler."""
        self.is_interrupted = True
        self.open()
        if self.has_turn:
            self._wake()

    def open(self) -> None:
        """Let the thread go on from where it blocks."""
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def block(self, timeout_s: float) -> bool:
        """Block until somebody opens; False when not in time. Below 0: for ever."""
        longest_s = self.longest_s
        if 0.0 <= timeout_s <= longest_s or longest_s == math.inf:
            return self._gate.acquire(timeout=timeout_s)
        until_s = math.inf if timeout_s < 0.0 else _now_s() + timeout_s
        while not self._gate.acquire(timeout=longest_s):
            longest_s = min(longest_s, until_s - _now_s())
            if longest_s <= 0.0:
                return False
        return True


class Inbox:
    """Hands out the turn to read. Any thread.

    Args:
        name: Name of the worker, for threads.
        pull: Reads and files one message within so many seconds (None: any time), and
            returns the work that it brings; raises `ClosedError` at the end.
        wake: Has a `pull` that runs, or the next one, return.
        crew: Runs work.
        flush: Sends what is held back.
        on_fault: Told when `pull` fails; from then on it raises `ClosedError`.
    """

    def __init__(
        self,
        name: str,
        pull: Callable[[float | None], Sequence[Work]],
        wake: Callable[[], None],
        crew: Crew,
        on_fault: Callable[[BaseException], None],
        flush: Callable[[], None],
    ) -> None:
        self._name = name
        self._pull = pull
        self._wake = wake
        self._crew = crew
        self._on_fault = on_fault
        self._flush = flush
        self._lock = threading.Lock()
        self._crews = Waiter(wake)  # stands for threads of the crew, and the watchdog
        self._holder: Waiter | None = None
        self._holder_thread = 0
        self._waiters: list[Waiter] = []
        self._freed_s = 0.0
        self._takes = 0
        self._is_closed = False
        self._done_count = 0  # pieces of work that readers have done
        self._patience = 0
        self._seen_takes = self._seen_done_count = -1  # at the last tick
        self._watchdog = Watchdog(f"rpcfut-watchdog-{name}", self._on_tick)

    def __repr__(self) -> str:
        who = "a waiter" if self._holder is not None else "nobody"
        who = "the crew" if self._holder is self._crews else who
        return f"<Inbox {self._name!r} read by {who}, {len(self._waiters)} more wait>"

    def start(self) -> None:
        """Have the crew read."""
        if not self._crew.start_reader(self._serve):
            self._note_free()

    def close(self, timeout_s: float) -> bool:
        """Wait until nobody reads any more, after `pull` began to raise.

        A thread that reads and closes, in one, is not waited for.

        Returns:
            False when somebody still reads.
        """
        self._is_closed = True
        self._wake()
        me = threading.get_ident()
        until_s = _now_s() + timeout_s
        pause = threading.Event()  # never set
        left_s = timeout_s
        while self._holder is not None and self._holder_thread != me and left_s > 0:
            pause.wait(min(_POLL_S, left_s))
            left_s = until_s - _now_s()
        self._watchdog.close(max(left_s, 0.0))
        return self._holder is None or self._holder_thread == me

    # ---- waiting --------------------------------------------------------------------

    def waiter(self) -> Waiter:
        """Make a waiter of the calling thread, for `wait`."""
        return Waiter(self._wake)

    def wait(self, waiter: Waiter, timeout_s: float | None) -> None:
        """Read until the waiter is done or interrupted, or time is up.

        The waiter's thread. It blocks without the GIL.
        """
        until_s = None if timeout_s is None else _now_s() + timeout_s
        self._flush()
        with self._lock:
            must_wake = self._holder is self._crews
            if self._holder is None and not self._is_closed:
                self._take_locked(waiter)
            else:
                self._waiters.append(waiter)
        try:
            if waiter.has_turn:
                self._read_until_done(waiter, until_s)
            elif must_wake:
                self._wake()
            while not (waiter.is_done or waiter.is_interrupted):
                if not waiter.block(self._left_s(until_s)):
                    return
                if waiter.has_turn:
                    self._read_until_done(waiter, until_s)
        finally:
            self._give_up(waiter)

    def _give_up(self, waiter: Waiter) -> None:
        """End a wait that was not given the turn, or not left it."""
        if waiter.has_turn:
            self._pass_on(waiter)
        elif waiter in self._waiters:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.has_turn:  # it was given the turn meanwhile
                self._pass_on(waiter)

    def _read_until_done(self, waiter: Waiter, until_s: float | None) -> None:
        pull, longest_s = self._pull, waiter.longest_s
        left_s = longest_s
        try:
            while not (waiter.is_done or waiter.is_interrupted):
                if until_s is not None:
                    left_s = min(until_s - _now_s(), longest_s)
                    if left_s <= 0:
                        break
                works = pull(left_s)
                if works:
                    self._submit(works)
        except ClosedError:
            pass  # who closes ends what the waiter waits for
        except TransportError as error:
            self._on_fault(error)
        finally:
            self._pass_on(waiter)

    def _left_s(self, until_s: float | None) -> float:
        if until_s is None:
            return _FOREVER_S
        return min(max(until_s - _now_s(), 0.0), threading.TIMEOUT_MAX)

    # ---- the turn -------------------------------------------------------------------

    def _take_locked(self, taker: Waiter) -> None:
        self._holder = taker
        self._takes += 1
        taker.has_turn = True
        self._holder_thread = threading.get_ident()

    def _take_for_crew(self) -> bool:
        with self._lock:
            if self._holder is not None or self._is_closed:
                return False
            self._take_locked(self._crews)
            return True

    def _pass_on(self, holder: Waiter) -> None:
        """Give the turn to the next waiter; without one it is free."""
        with self._lock:
            if self._holder is not holder:
                return
            if holder is not self._crews:
                holder.has_turn = False
            following = None
            while self._waiters and not self._is_closed:
                # The newest: the answers of the others are likely to come before its
                # own, and it wakes them while it reads on.
                candidate = self._waiters.pop()
                if not candidate.is_done:
                    following = candidate
                    self._take_locked(candidate)
                    self._holder_thread = candidate._thread  # noqa: SLF001 - its owner
                    break
            else:
                self._holder = None
        if following is not None:
            following.open()
        else:
            self._note_free()

    def _note_free(self) -> None:
        self._freed_s = _now_s()
        self.tick()

    # ---- the crew -------------------------------------------------------------------

    def _serve(self) -> None:
        """Read, and run what was read, until somebody else reads. Crew thread."""
        crew = self._crew
        while self._take_for_crew():
            work = None
            try:
                work = self._read_work()
            except ClosedError:
                return
            except BaseException as error:  # noqa: BLE001 - handed on
                self._on_fault(error)
                return
            finally:
                self._pass_on(self._crews)
            if work is None:
                return  # a waiter came
            while work is not None:
                try:
                    work()
                except BaseException:  # noqa: BLE001 - logged; it serves others, too
                    _log.exception("work of %s raised", self._name)
                self._done_count += 1
                work = crew.leave()
            self._flush()

    def _read_work(self) -> Work | None:
        """Read until there is work for this thread, or a waiter wants the turn."""
        pull, crew = self._pull, self._crew
        while not self._waiters:
            works = pull(None)
            if works:
                if crew.enter():
                    if len(works) > 1:
                        crew.put_off(works[1:])
                    return works[0]
                crew.put_off(works)
        return None

    def _submit(self, works: Sequence[Work]) -> None:
        self._crew.submit(works[0])
        if len(works) > 1:
            self._crew.put_off(works[1:])

    # ---- the watchdog ---------------------------------------------------------------

    def tick(self) -> None:
        """See to it that the watchdog ticks; it flushes, too."""
        if not self._watchdog.is_ticking:
            self._watchdog.wake()

    def _on_tick(self) -> bool:
        """Have somebody read if the turn was free for long; whether all is quiet."""
        self._flush()
        self._crew.relieve()
        with self._lock:
            is_held = self._holder is not None
            is_quiet = is_held and self._seen_takes == self._takes
            self._seen_takes = self._takes
        # Who works off many small calls comes back to read when they are done.
        is_busy = self._seen_done_count != self._done_count
        self._seen_done_count = self._done_count
        if is_held or not is_busy:
            self._patience = _MAX_PATIENCE
        if not is_held and _now_s() - self._freed_s >= _FREE_S:
            if self._patience and is_busy:
                self._patience -= 1
            else:
                self._have_read()
        return is_quiet and not self._crew.has_more

    def _have_read(self) -> None:
        if self._crew.start_reader(self._serve):
            self._freed_s = _now_s()  # it needs a moment to come
            return
        # Until the crew has a thread again, or a waiter wants the turn.
        if not self._take_for_crew():
            return
        try:
            while not self._waiters and not self._is_closed:
                works = self._pull(_STAND_IN_S)
                if works:
                    self._submit(works)
                elif self._crew.start_reader(self._serve):
                    break
        except ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed on
            self._on_fault(error)
        finally:
            self._pass_on(self._crews)
