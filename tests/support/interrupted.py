"""What the children of the tests of Ctrl-C run."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import rpcfut
from rpcfut import _interrupts

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_THREADS = 3


@rpcfut.expose
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@rpcfut.expose
def never() -> rpcfut.Future[None]:
    """Return what is never done."""
    return rpcfut.Future()


def serve(conn: Connection, store: str) -> None:
    """Serve until told to stop."""
    rpcfut.init_rpc("server", rank=1, world_size=2, init_method=f"file://{store}")
    conn.recv()
    rpcfut.shutdown(graceful=False)


class _Caller:
    """Calls, and checks each answer."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.interrupt_count = 0
        self.inbox_count = 0
        self.may_end = threading.Event()
        self._number = 0
        self._future: rpcfut.Future[int] | None = None

    def call_on(self) -> None:
        """Call again and again. A thread of its own."""
        number = 0
        while not self.may_end.is_set():
            number += 1
            self._check(number, rpcfut.rpc_async("server", double, (number,), None, 30))

    def call_under_fire(self, is_over: Callable[[], bool]) -> None:
        """Call on the main thread until it is over; interrupts are counted."""
        while True:
            try:
                self._call_until_interrupted(is_over)
            except KeyboardInterrupt:  # it hit the handler of another one
                self.interrupt_count += 1
            else:
                return

    def _call_until_interrupted(self, is_over: Callable[[], bool]) -> None:
        while True:
            try:
                while not is_over():
                    if self._future is None:
                        self._number += 1
                        self._future = rpcfut.rpc_async(
                            "server", double, (self._number,), None, 30
                        )
                    self._future.exception()
                    self._check(self._number, self._future)
                    self._future = None
            except KeyboardInterrupt as interrupt:
                self.interrupt_count += 1
                self.inbox_count += _is_from_inbox(interrupt)
            else:
                return

    def _check(self, number: int, future: rpcfut.Future[int]) -> None:
        try:
            if future.wait() != 2 * number:
                self.wrong.append(f"{number} came back wrong")
        except Exception as error:  # noqa: BLE001 - what the parent looks for
            self.wrong.append(repr(error))


def call_under_fire(conn: Connection, store: str) -> None:
    """Call from the main thread and from others, while the parent interrupts.

    Sends its pid, then ``(interrupts, interrupts in the inbox, wrong or lost)``.
    """
    # A job in the background inherits that the signal is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rpcfut.init_rpc("caller", rank=0, world_size=2, init_method=f"file://{store}")
    caller = _Caller()
    threads = [threading.Thread(target=caller.call_on) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    conn.send(os.getpid())
    caller.call_under_fire(conn.poll)
    caller.may_end.set()
    for thread in threads:
        thread.join(40)
    hanging = [f"{thread.name} hangs" for thread in threads if thread.is_alive()]
    conn.recv()
    wrong = caller.wrong + hanging
    conn.send((caller.interrupt_count, caller.inbox_count, wrong))
    rpcfut.shutdown(graceful=False)


def _is_from_inbox(interrupt: KeyboardInterrupt) -> bool:
    """Whether a wait raised it that was reading: see `rpcfut._interrupts`."""
    trace = interrupt.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is _interrupts.wait_in.__code__


def wait_for_ever(conn: Connection, store: str) -> None:
    """Wait for what never comes; say how that ended.

    Interrupts itself when told to, by a signal that another thread is given.
    """
    # A job in the background inherits that the signal is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rpcfut.init_rpc("caller", rank=0, world_size=2, init_method=f"file://{store}")
    future = rpcfut.rpc_async("server", never)

    def take_the_signal() -> None:
        conn.recv()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=take_the_signal, daemon=True).start()
    conn.send(os.getpid())
    try:
        future.wait()
        conn.send("done")
    except KeyboardInterrupt as interrupt:
        conn.send("inbox" if _is_from_inbox(interrupt) else "elsewhere")
    rpcfut.shutdown(graceful=False)
