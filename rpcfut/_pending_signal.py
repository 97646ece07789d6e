"""A signal has the process write what is pending to stderr, wherever it hangs.

Theory of operation. A handler in Python runs on the main thread, between two of its
instructions; that is, never while the thread is in a call to C. So the signal is given
to `faulthandler`, whose handler is C and runs on whichever thread the signal reaches,
mostly the main one. It writes where that thread is, not to stderr but into a pipe. A
thread of ours sleeps at the other end; what comes out wakes it and becomes part of the
report. No wake-up descriptor is taken (asyncio and trio want the only one), and no
thread has to block the signal (child processes would inherit that).
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rpcfut._error_text import clean
from rpcfut._errors import LifecycleError
from rpcfut._process import this_process

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("rpcfut.control")

_STDERR = 2
_CHUNK_NBYTES = 64 * 1024  # as much as a pipe holds
_QUIET_MS = 20  # a dump comes in many small writes
_CLOSE_S = 2.0


class PendingOnSignal:
    """Reports at each signal until it is closed; see `report_pending_on`."""

    def __init__(self, signum: int) -> None:
        _require_free(signum)
        self._signum = signum
        self._earlier = signal.getsignal(signum)
        self._is_closed = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        try:
            faulthandler.register(signum, file=self._write_fd, all_threads=False)
        except BaseException:
            os.close(self._read_fd)
            os.close(self._write_fd)
            raise
        mute = weakref.WeakMethod(self._mute_child)
        os.register_at_fork(after_in_child=lambda: (m := mute()) is not None and m())
        self._thread = threading.Thread(
            target=self._run, name="rpcfut-control-signal", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<PendingOnSignal {signal.Signals(self._signum).name} {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Put the earlier handler back and end the thread. Idempotent.

        Takes 2 s at most. A handler that was installed meanwhile stays; then it must be
        called on the main thread.
        """
        if self._is_closed:
            return
        later = signal.getsignal(self._signum)
        if later is not self._earlier and not _is_main_thread():
            raise LifecycleError(
                f"{later!r} was installed for signal {self._signum} meanwhile: call "
                "close() on the main thread, where Python can put it back"
            )
        self._is_closed = True
        faulthandler.unregister(self._signum)
        if later is not self._earlier:
            signal.signal(self._signum, later)
        with contextlib.suppress(OSError):  # the thread may have ended by itself
            os.write(self._write_fd, b"\n")
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        os.close(self._write_fd)

    def _mute_child(self) -> None:
        """Have a forked child write to nobody: the pipe's reader is its parent."""
        if not self._is_closed:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._write_fd, inheritable=False)
            os.close(nowhere)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._read_fd, select.POLLIN)
        try:
            while not self._is_closed:
                dump = os.read(self._read_fd, _CHUNK_NBYTES)
                while not self._is_closed and poller.poll(_QUIET_MS):
                    dump += os.read(self._read_fd, _CHUNK_NBYTES)
                if not self._is_closed:
                    self._report(dump)
        finally:
            os.close(self._read_fd)

    def _report(self, dump: bytes) -> None:
        try:
            text = _text(dump).encode(errors="backslashreplace")
            while text:
                text = text[os.write(_STDERR, text) :]
        except Exception:  # noqa: BLE001 - logged; the next signal may fare better
            _log.exception("cannot report what is pending")


def report_pending_on(signum: int) -> PendingOnSignal:
    """Write what is pending to stderr whenever the process gets a signal.

    The text is that of ``python -m rpcfut pending``, and where the thread is that the
    signal reached, mostly the main one; a thread of its own writes it to file
    descriptor 2. So it also comes while the main thread waits for a lock for ever, or
    is in a call to C that has released the GIL. It does not come while some thread
    keeps the GIL. As with any signal, a sleep in C may end early.

    Opt-in: no signal is touched before, and what Python has as the handler of `signum`
    is back after `close`. It is not called meanwhile. A forked child reports nothing.

    Args:
        signum: ``signal.SIGUSR2`` for example.

    Returns:
        What undoes it by `close`, and a context manager that does.

    Raises:
        LifecycleError: When code in C handles the signal already, `faulthandler` for
            one, or this function was called for it before.
        ValueError: When there is no such signal, or it cannot be caught.
    """
    return PendingOnSignal(signum)


def _require_free(signum: int) -> None:
    """Refuse a signal that has a handler which could not be put back.

    Raises:
        LifecycleError: When code in C handles it.
        ValueError: When there is no such signal.
    """
    by_python = signal.getsignal(signal.Signals(signum))
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    is_caught = bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
    if is_caught and by_python in (None, signal.SIG_DFL, signal.SIG_IGN):
        raise LifecycleError(
            f"signal {signum} is handled by code in C already (faulthandler.register, "
            "or an earlier report_pending_on), which could not be put back: take "
            "another signal, or undo that first"
        )


def _text(dump: bytes) -> str:
    where = clean(dump.decode(errors="replace")).strip()
    agent = this_process().agent
    text = f"process {os.getpid()} is no worker of a group"
    if agent is not None:
        text = str(agent.pending())
    return f"{text}\n  the thread that got the signal:\n{_indented(where)}\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
