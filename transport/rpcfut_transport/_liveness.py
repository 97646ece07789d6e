"""Notices at once when a process on this host dies.

Theory of operation: a pidfd names one process for good, and becomes readable when it
exits, also while it is a zombie. One thread polls them all, without a timeout. An
eventfd wakes it when the set changes.

Only that thread polls and closes pidfds, and only it calls back. So a descriptor is
never closed while it is polled, and nobody is called back inside `PidWatch.watch`.

Which process a peer is, and what proves it, `_proof` knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rpcfut_transport._errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0
_START_TIME_FIELD = 22  # of /proc/<pid>/stat, counted from 1; 3 is the first after ")"


def process_start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone.

    Any thread; does not block.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses, with any characters inside.
    fields = stat[stat.rindex(b")") + 1 :].split()
    return int(fields[_START_TIME_FIELD - 3])


def pid_namespace() -> int:
    """Return what names the namespace of this process's pids. Any thread."""
    return Path("/proc/self/ns/pid").stat().st_ino


def host_id() -> str:
    """Return what names this host until it reboots. Any thread."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(slots=True, kw_only=True)
class _Watched:
    rank: int
    pidfd: int | None
    reason: str
    on_lost: Callable[[int, str], None]
    is_polled: bool = False


class PidWatch:
    """Watches processes of this host, on one thread of its own.

    Owned by the endpoint. The thread starts with the first watched process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._retired: list[_Watched] = []
        self._thread: threading.Thread | None = None
        self._wake_fd: int | None = None
        self._is_closed = False

    def watch(
        self,
        rank: int,
        pidfd: int | None,
        on_lost: Callable[[int, str], None],
        reason: str = "its process ended",
    ) -> None:
        """Have somebody called when a process is gone.

        Any thread; does not block.

        Args:
            rank: A name for the process; what was watched under it is not any longer.
            pidfd: Names the process; this watch closes it, also when it raises. None
                for one that is known to be gone.
            on_lost: Called once with the rank and the reason, on the watching thread.
                It must not block.
            reason: What to say then.

        Raises:
            ClosedError: When `close` was called.
        """
        entry = _Watched(rank=rank, pidfd=pidfd, reason=reason, on_lost=on_lost)
        with self._lock:
            if self._is_closed:
                if pidfd is not None:
                    os.close(pidfd)
                raise ClosedError("this PidWatch was closed")
            self._retire_locked(rank)
            self._watched[rank] = entry
            self._start_locked()
            self._wake_locked()

    def unwatch(self, rank: int) -> None:
        """Forget a process; nothing happens when it was not watched.

        Any thread; does not block. A call back that is under way may still arrive.
        """
        with self._lock:
            self._retire_locked(rank)
            self._wake_locked()

    def close(self) -> None:
        """Stop watching. Idempotent; waits for the thread for at most 2 s.

        Any thread, also the watching one, which is then not waited for.
        """
        with self._lock:
            self._is_closed = True
            self._wake_locked()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT_S)

    def _retire_locked(self, rank: int) -> None:
        entry = self._watched.pop(rank, None)
        if entry is not None:
            self._retired.append(entry)

    def _start_locked(self) -> None:
        if self._thread is None:
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(
                target=self._run,
                args=(self._wake_fd,),
                name="rpcfut-liveness",
                daemon=True,
            )
            self._thread.start()

    def _wake_locked(self) -> None:
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def _run(self, wake_fd: int) -> None:
        poller = select.poll()
        poller.register(wake_fd, select.POLLIN)
        try:
            while self._refresh(poller):
                ready = {fd for fd, _ in poller.poll()}
                if wake_fd in ready:
                    os.eventfd_read(wake_fd)
                for entry in self._take_exited(ready):
                    self._close_pidfd(poller, entry)
                    self._report(entry)
        finally:
            self._release(poller, wake_fd)

    def _refresh(self, poller: select.poll) -> bool:
        """Take over what changed; say whether to go on."""
        with self._lock:
            retired, self._retired = self._retired, []
            added = [e for e in self._watched.values() if not e.is_polled]
            goes_on = not self._is_closed
        for entry in retired:
            self._close_pidfd(poller, entry)
        for entry in added:
            if entry.pidfd is not None:
                entry.is_polled = True
                poller.register(entry.pidfd, select.POLLIN)
            elif self._take(entry):
                self._report(entry)
        return goes_on

    def _take(self, entry: _Watched) -> bool:
        with self._lock:
            if self._watched.get(entry.rank) is not entry:
                return False
            del self._watched[entry.rank]
            return True

    def _take_exited(self, ready: set[int]) -> list[_Watched]:
        with self._lock:
            exited = [e for e in self._watched.values() if e.pidfd in ready]
            for entry in exited:
                del self._watched[entry.rank]
        return exited

    def _close_pidfd(self, poller: select.poll, entry: _Watched) -> None:
        if entry.pidfd is not None:
            with contextlib.suppress(KeyError):
                poller.unregister(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = None

    def _report(self, entry: _Watched) -> None:
        _log.debug("rank %s is lost: %s", entry.rank, entry.reason)
        try:
            entry.on_lost(entry.rank, entry.reason)
        except Exception:  # noqa: BLE001 - logged; the thread serves others too
            _log.exception("on_lost of rank %s raised", entry.rank)

    def _release(self, poller: select.poll, wake_fd: int) -> None:
        with self._lock:
            self._is_closed = True
            entries = [*self._watched.values(), *self._retired]
            self._watched.clear()
            self._retired.clear()
            self._wake_fd = None
        for entry in entries:
            self._close_pidfd(poller, entry)
        os.close(wake_fd)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<PidWatch {state} watched={len(self._watched)}>"
