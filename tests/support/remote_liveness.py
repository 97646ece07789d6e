"""What workers run in tests of peers that are stopped or killed (RPC-7, RPC-2)."""

from __future__ import annotations

import os
import random
import signal
import threading
import traceback
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import rpcfut
import rpcfut_transport._proof
from rpcfut.transport import MonotonicClock
from tests.support.delivery import stop
from tests.support.pid_namespace import run_as_first_process
from tests.support.remote import add, echo, never, pid_here

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PATIENCE_S = 60.0
_NO_SUCH_OPTION = 9999


@rpcfut.expose
def fork_a_child() -> int:
    """Fork a child that holds all sockets of this worker, and does nothing."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        signal.pause()
        os._exit(0)
    return pid


def _join(rank: int, count: int, rendezvous: str, **options: Any) -> bool:
    """Join; ranks above 0 serve until the others leave. Whether this is rank 0."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous, **options)
    if rank != 0:
        rpcfut.shutdown(timeout=PATIENCE_S)
    return rank == 0


def kill_it_with_a_child(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 kills w1, whose forked child holds its sockets, with calls pending."""
    if not _join(rank, count, rendezvous):
        return None
    pid, other_pid = (rpcfut.rpc_sync(name, pid_here) for name in ("w1", "w2"))
    child = rpcfut.rpc_sync("w1", fork_a_child)
    clock = MonotonicClock()
    try:
        pending = [rpcfut.rpc_async("w1", never) for _ in range(50)]
        others = [rpcfut.rpc_async("w2", never) for _ in range(5)]
        behind = pending[0].then(lambda future: future.value())
        rpcfut.rpc_sync("w1", echo, (0,))
        os.kill(pid, signal.SIGKILL)
        start_s = clock.now_s()
        errors = {type(f.exception(PATIENCE_S)).__name__ for f in [*pending, behind]}
        took_s = clock.now_s() - start_s
        late = rpcfut.rpc_async("w1", add, (1,)).exception(PATIENCE_S)
        alive = rpcfut.rpc_sync("w2", add, (1,))
        are_pending = not any(future.done() for future in others)
    finally:
        os.kill(child, signal.SIGKILL)
    rpcfut.shutdown(graceful=False)
    os.kill(other_pid, signal.SIGKILL)  # it would wait for what it serves
    return errors, took_s, str(late), alive, are_pending


class Ends:
    """How calls end, and how often each does."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.futures: list[tuple[Any, rpcfut.Future[Any]]] = []

    def add(self, wanted: Any, future: rpcfut.Future[Any]) -> None:
        """Take note of a call, and of what it is to return."""
        number = len(self.futures)
        self.futures.append((wanted, future))
        future.add_done_callback(lambda _: self.counts.update([number]))

    def wait(self) -> Counter[str]:
        """Wait until all have ended."""
        seen: Counter[str] = Counter()
        for wanted, future in self.futures:
            error = future.exception(PATIENCE_S)
            if error is not None:
                seen[type(error).__name__] += 1
            else:
                seen["right" if _equal(future.value(), wanted) else "wrong"] += 1
        return seen


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return bool(torch.equal(found, wanted))
    return bool(found == wanted)


def kill_it_at_a_random_moment(
    rank: int, count: int, rendezvous: str, seed: int
) -> Any:
    """Rank 0 makes 20 calls to w1, which is killed meanwhile, or a moment after."""
    if not _join(rank, count, rendezvous):
        return None
    dice = random.Random(seed)
    pid = rpcfut.rpc_sync("w1", pid_here)
    kill = threading.Timer(dice.uniform(0, 0.006), os.kill, (pid, signal.SIGKILL))
    large = torch.full((50_000,), float(seed))
    ends = Ends()
    kill.start()
    for number in range(20):
        function, wanted = dice.choice([(echo, number), (echo, large), (never, None)])
        ends.add(wanted, rpcfut.rpc_async("w1", function, (wanted,)))
    kill.join()
    seen = ends.wait()
    alive = rpcfut.rpc_sync("w2", add, (1,))
    rpcfut.shutdown(graceful=False)
    return seen, dict(ends.counts), alive


def stop_it_for_a_while(rank: int, count: int, rendezvous: str, seconds: float) -> Any:
    """Rank 0 calls w1, which is stopped for a while."""
    if not _join(rank, count, rendezvous):
        return None
    pid = rpcfut.rpc_sync("w1", pid_here)
    ends = Ends()
    for number in range(20):
        ends.add(number, rpcfut.rpc_async("w1", echo, (number,)))
    stop(pid)
    try:
        for number in range(20):
            ends.add(number, rpcfut.rpc_async("w1", echo, (number,)))
        threading.Event().wait(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    seen = ends.wait()
    rpcfut.shutdown(timeout=PATIENCE_S)
    return seen


def fill_it_and_kill_it(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 has 100 MB wait for w1, which is stopped and then killed; calls w2."""
    if not _join(rank, count, rendezvous):
        return None
    pid = rpcfut.rpc_sync("w1", pid_here)
    stop(pid)
    load = torch.zeros(500_000)
    filled, others = Ends(), Ends()
    for number in range(50):
        filled.add(None, rpcfut.rpc_async("w1", echo, (load,)))
        others.add(number, rpcfut.rpc_async("w2", echo, (number,)))
    while_stopped = others.wait()
    pending = sum(not future.done() for _, future in filled.futures)
    os.kill(pid, signal.SIGKILL)
    for number in range(50):
        others.add(number, rpcfut.rpc_async("w2", echo, (number,)))
    seen = while_stopped, pending, others.wait(), filled.wait()
    rpcfut.shutdown(graceful=False)
    return seen


# ---- in another pid namespace ---------------------------------------------------


def call_across(
    rank: int,
    count: int,
    rendezvous: str,
    inside: int,
    lost_after_s: float | None,
    pipes: list[Connection],
) -> Any:
    """One of two workers is in a pid namespace of its own; the parent acts on w1.

    Its pipe brings back how the calls of each ended. With `lost_after_s` the kernel
    tells nothing of processes that are not seen from here, as older ones do.
    """
    run = partial(_call_across, rank, count, rendezvous, lost_after_s, pipes[rank])
    if rank == inside:
        run_as_first_process(run)
    run()


def _call_across(
    rank: int,
    count: int,
    rendezvous: str,
    lost_after_s: float | None,
    pipe: Connection,
) -> None:
    try:
        if lost_after_s is not None:
            rpcfut_transport._proof._SO_PEERPIDFD = _NO_SUCH_OPTION
        rpcfut.init_rpc(
            f"w{rank}",
            rank,
            count,
            init_method=rendezvous,
            lost_after_s=lost_after_s or 10.0,
        )
        other = f"w{1 - rank}"
        assert rpcfut.rpc_sync(other, add, (1,)) == 2
        waits = rpcfut.rpc_async(other, never)
        pipe.send("joined")
        clock = MonotonicClock()
        assert pipe.recv() == "acted"
        start_s = clock.now_s()
        error = waits.exception(PATIENCE_S)
        pipe.send((type(error).__name__, clock.now_s() - start_s, str(error)))
        rpcfut.shutdown(graceful=False)
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
