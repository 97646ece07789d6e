"""Workers that hang in many ways, for tests of what is said of them then."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

import rpcfut
from tests.support import remote
from tests.support.threads import wait_until

_for_ever = threading.Lock()


@rpcfut.expose
def block_for_ever(secret: str) -> None:
    """Hang on a thread of the pool, by a lock that the pool does not know of."""
    with _for_ever:
        pass


def hang_in_lock() -> None:
    _for_ever.acquire()
    _for_ever.acquire()


def hang_in_c() -> None:
    while True:
        ctypes.CDLL(None).sleep(1000)  # the GIL is released meanwhile


def hang_with_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


HANGS = {"lock": hang_in_lock, "c": hang_in_c}


def _write_stderr_to(path: str) -> None:
    with Path(path).open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)


def call_and_hang(
    rank: int, count: int, rendezvous: str, how: str, stderr: str
) -> None:
    """Rank 1 calls rank 0 and hangs; rank 0 serves."""
    if rank == 1:
        _write_stderr_to(stderr)
        rpcfut.report_pending_on(signal.SIGUSR2)
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank == 1:
        kept = rpcfut.rpc_async("w0", remote.never, ("hush-hush",), timeout=500)
        HANGS[how]()
        kept.wait()
    rpcfut.shutdown()


def stay(rank: int, count: int, rendezvous: str) -> None:
    """Be a worker until killed, with nothing pending."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    while True:
        signal.pause()


def keep_the_gil(rank: int, count: int, rendezvous: str) -> None:
    """Join, and let no thread of Python run any more."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    hang_with_gil()


def fill_the_pool(rank: int, count: int, rendezvous: str) -> None:
    """Rank 0 calls rank 1 until no thread is left there, and further."""
    _for_ever.acquire()
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous, max_threads=2)
    if rank == 0:
        calls = [
            rpcfut.rpc_async("w1", block_for_ever, ("hush-hush",)) for _ in range(5)
        ]
        rpcfut.gather_outcomes(calls).wait()
    rpcfut.shutdown()


def fork_and_leave(rank: int, count: int, rendezvous: str, note: str) -> None:
    """Fork a child that does nothing, its pid is in a file; then leave."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    _fork(note)
    rpcfut.shutdown()


def fork_and_stay(rank: int, count: int, rendezvous: str, note: str) -> None:
    """Do the same, and stay until killed."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    _fork(note)
    while True:
        signal.pause()


def _fork(note: str) -> None:
    child = os.fork()
    while child == 0:
        signal.pause()
    Path(note).write_text(f"{child}\n")


def signal_a_forked_child(rank: int, count: int, rendezvous: str, stderr: str) -> str:
    """Signal first a forked child, then this process; what was written."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    _write_stderr_to(stderr)
    with rpcfut.report_pending_on(signal.SIGUSR2):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
            os._exit(0)
        os.waitpid(child, 0)
        os.kill(os.getpid(), signal.SIGUSR2)
        wait_until(lambda: "signal_a_forked_child" in Path(stderr).read_text())
    rpcfut.shutdown()
    return Path(stderr).read_text()
