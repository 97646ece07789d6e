"""The c10d store in which the workers of a group meet, served here or by another.

Opening it is bounded in time and can be interrupted, which torch's constructors are
not: they wait in native code, for a folder that does not exist or for a server that is
none, longer than they were told.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch.distributed as dist

from rpcfut._errors import RendezvousError
from rpcfut_transport import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport import Clock

T = TypeVar("T")

_PROBE_S = 1.0
_PROBE_AGAIN_S = 0.05


class Store(Protocol):
    """The part of a c10d store that is used here."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """Get a key, waiting for it."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Get many keys, waiting for them."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        ...

    def delete_key(self, key: str, /) -> bool:
        """Delete a key; whether there was one."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key if it has the expected value, or is absent; return what it has."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter; return what it has then."""
        ...


def meet_at(host: str, port: int, rank: int | None, timeout_s: float) -> Store:
    """Serve the store there if that is up to us, else reach it.

    Args:
        host: Where it is served.
        port: At which port.
        rank: The own rank; 0 serves it. None, where ranks are given when joining:
            then whoever comes first on that host does.
        timeout_s: How long to wait for it, in seconds.

    Raises:
        RendezvousError: When it cannot be served, or does not answer.
    """
    if rank == 0:
        return serve_store(host, port, timeout_s)
    if rank is None and not _answers(host, port) and _is_here(host):
        with suppress(RendezvousError):  # somebody else was quicker
            return serve_store(host, port, timeout_s)
    return reach_store(host, port, timeout_s)


def _answers(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), _PROBE_S).close()
        return True
    return False


def _is_here(host: str) -> bool:
    """Whether an address is one of this host's."""
    with suppress(OSError):
        for family, kind, protocol, _, (address, *rest) in socket.getaddrinfo(
            host, None, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind((address, 0, *rest[1:]))
                return True
    return False


def serve_store(host: str, port: int, timeout_s: float) -> Store:
    """Serve a store.

    Raises:
        RendezvousError: When it cannot listen there.
    """
    return within(
        timeout_s,
        lambda: _tcp_store(host, port, timeout_s, is_server=True),
        f"listen at {host}:{port}",
    )


def reach_store(host: str, port: int, timeout_s: float) -> Store:
    """Reach a store, and wait for whoever serves it. Interruptible.

    Raises:
        RendezvousError: When it does not answer in time.
    """
    clock = MonotonicClock()
    deadline_s = clock.now_s() + timeout_s
    _await_server(host, port, clock, deadline_s)
    left_s = max(deadline_s - clock.now_s(), _PROBE_S)
    return within(
        left_s,
        lambda: _tcp_store(host, port, left_s, is_server=False),
        f"reach the store at {host}:{port}",
    )


def _await_server(host: str, port: int, clock: Clock, deadline_s: float) -> None:
    """Wait until something listens there; torch says a lot while it does."""
    pause = threading.Event()  # never set: an interruptible sleep
    while True:
        try:
            socket.create_connection((host, port), _PROBE_S).close()
        except OSError as error:
            if clock.now_s() >= deadline_s:
                raise RendezvousError(
                    f"cannot reach the store at {host}:{port}: {error}; is rank 0, or "
                    "whoever serves it, running?"
                ) from error
        else:
            return
        pause.wait(_PROBE_AGAIN_S)


def _tcp_store(host: str, port: int, timeout_s: float, *, is_server: bool) -> Store:
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]  # a name that torch makes at import
        host,
        port,
        None,
        is_server,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store


def file_store(path: str, timeout_s: float) -> Store:
    """Open a store in a file.

    Raises:
        RendezvousError: When there is no folder for it, or it is locked for long.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise RendezvousError(
            f"cannot meet in the file {path!r}: there is no folder {str(folder)!r}"
        )

    def make() -> Store:
        # Without a number of workers: the last of these would remove the file while
        # those that join again, or return, already write to it.
        store: Store = dist.FileStore(path)  # type: ignore[attr-defined]  # as above
        return store

    return within(timeout_s, make, f"meet in the file {path!r}")


def within(timeout_s: float, make: Callable[[], T], act: str) -> T:
    """Do something on a thread of its own, which is left behind if it never returns.

    Raises:
        RendezvousError: When it fails, or takes longer; says what it was.
    """
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="rpcfut-store", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if made:
        return made[0]
    if failed:
        reason = str(failed[0]).partition("\n")[0]
        raise RendezvousError(f"cannot {act}: {reason}") from failed[0]
    raise RendezvousError(
        f"cannot {act}: no answer within {timeout_s} s; does something else listen or "
        "lie there?"
    )
