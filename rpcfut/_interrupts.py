"""Ctrl-C while the main thread reads an inbox.

Theory of operation. Python's own handler raises KeyboardInterrupt between any two
instructions, so also between the one that took a message and the one that files it: the
message would be lost, and with it somebody's call. So while the main thread is inside a
wait in which it may read, a handler of ours stands, as trio's does: it notes the
interrupt and wakes the inbox, and the wait raises once the message in hand is filed.

It stands only there. asyncio and trio put theirs in place only over Python's own, so it
must not be found by them; and where somebody else's handler stands, the main thread
does not read at all, and is woken by whoever does.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal.signal() takes 7 us more
import threading
from signal import SIGINT, default_int_handler
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rpcfut_transport import Inbox, Waiter

_SIGINT: Final = int(SIGINT)


def may_read() -> bool:
    """Whether the calling thread may read an inbox while it waits."""
    is_main = threading.get_ident() == threading.main_thread().ident
    return not is_main or _signal.getsignal(_SIGINT) is default_int_handler


def wait_in(inbox: Inbox, waiter: Waiter, timeout_s: float | None) -> None:
    """Wait for a waiter of this thread, which `may_read`, by reading an inbox.

    Raises:
        KeyboardInterrupt: When Ctrl-C came meanwhile; no message is lost.
    """
    if threading.get_ident() != threading.main_thread().ident:
        inbox.wait(waiter, timeout_s)
        return

    def note(_signum: int, _frame: object) -> None:
        waiter.interrupt()

    try:
        _signal.signal(_SIGINT, note)
        inbox.wait(waiter, timeout_s)
    finally:
        _signal.signal(_SIGINT, default_int_handler)
    if waiter.is_interrupted:
        raise KeyboardInterrupt
