"""Functions that test workers expose, and what test processes run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rpcfut
from rpcfut._process import current_agent
from rpcfut.transport import MonotonicClock
from tests.support.threads import wait_until


@rpcfut.register_type
@dataclass
class Pair:
    """A class that was registered in two words."""

    left: torch.Tensor
    right: Any


class Opaque:
    """A class that nobody registered."""

    def __init__(self, inside: Any = None) -> None:
        self.inside = inside


class Untransportable:
    """Has an extractor, but no way to travel."""


rpcfut.no_device_data(Untransportable)


class TwoArguments(Exception):  # noqa: N818 - a user's
    """An exception whose constructor wants two arguments by name."""

    def __init__(self, *, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


@rpcfut.expose
def echo(value: Any) -> Any:
    return value


@rpcfut.expose
def add(a: Any, b: Any = 1) -> Any:
    return a + b


@rpcfut.expose
def fail(name: str) -> None:
    raise {
        "KeyError": KeyError("no such key"),
        "TwoArguments": TwoArguments(code=7, reason="worn out"),
        "SystemExit": SystemExit(3),
    }[name]


@rpcfut.expose
def make_opaque() -> Any:
    return {"layers": [1, Opaque(torch.zeros(1))]}


@rpcfut.expose
def make_untransportable() -> Any:
    return [Untransportable()]


@rpcfut.expose
def swap(pair: Pair) -> Pair:
    return Pair(left=pair.right, right=pair.left)


@rpcfut.expose
def call_back(to: str, value: int) -> int:
    return rpcfut.rpc_sync(to, add, args=(value,)) * 10


@rpcfut.expose
def later(value: int) -> rpcfut.Future[int]:
    future: rpcfut.Future[int] = rpcfut.Future()
    threading.Thread(target=lambda: future.set_result(value + 1)).start()
    return future


@rpcfut.expose
def never(_: Any = None) -> rpcfut.Future[None]:
    return rpcfut.Future()


@rpcfut.expose
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@rpcfut.expose
def pid_here() -> int:
    return os.getpid()


def not_exposed() -> None:
    """What peers must not call."""


# ---- what processes run: function(rank, world_size, rendezvous, ...) ------------


def serve_only(rank: int, count: int, rendezvous: str) -> str:
    """Join, serve until the others are ready to leave, leave."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    rpcfut.shutdown()
    return "left"


def call_peers(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 calls everything in this module on w1; the others serve."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    seen: dict[str, Any] = {}
    if rank == 0:
        x = torch.arange(100_000, dtype=torch.float32)
        future = rpcfut.rpc_async("w1", add, args=(x,), kwargs={"b": 2})
        x.zero_()
        seen["sum"] = bool((future.wait() == torch.arange(100_000) + 2).all())
        pair = rpcfut.rpc_sync("w1", swap, args=(Pair(torch.ones(3), "r"),))
        seen["pair"] = (type(pair).__name__, pair.left, pair.right.tolist())
        seen["nested"] = rpcfut.rpc_sync("w1", call_back, args=("w0", 4))
        seen["self"] = rpcfut.rpc_sync("w0", add, args=(1,))
        seen["by rank"] = rpcfut.rpc_sync(1, add, args=(1,))
        seen["later"] = rpcfut.rpc_sync("w1", later, args=(5,))
        chained = rpcfut.rpc_async("w1", add, args=(1,)).then(
            lambda f: rpcfut.rpc_async("w1", add, args=(f.value(), 10))
        )
        seen["chained"] = chained.wait(timeout=10)
    rpcfut.shutdown(timeout=20)
    return seen


def be_killed(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 waits for a call to w1, which kills itself meanwhile."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        rpcfut.shutdown()
        return None
    pending = [rpcfut.rpc_async("w1", never) for _ in range(20)]
    child = pending[0].then(lambda f: f.value())
    rpcfut.rpc_async("w1", die)
    clock = MonotonicClock()
    start_s = clock.now_s()
    errors = [type(future.exception(timeout=10)).__name__ for future in pending]
    took_s = clock.now_s() - start_s
    child_error = type(child.exception(timeout=10)).__name__
    alive = rpcfut.rpc_sync("w2", add, args=(1,))
    try:
        rpcfut.rpc_async("w1", add, args=(1,)).wait(timeout=10)
        text = "nothing raised"
    except rpcfut.PeerLostError as error:
        text = str(error)
    rpcfut.shutdown(timeout=20)
    return set(errors), took_s, child_error, alive, text


def ask_the_stopped(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 stops w1, calls it, lets it go on, cancels a call and kills it."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        rpcfut.shutdown()
        return None
    counters = current_agent()._endpoint
    pid = rpcfut.rpc_sync("w1", pid_here)
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")  # a moment later
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    kept, hasty = (rpcfut.rpc_async("w1", add, args=(1,), timeout=t) for t in (60, 0.3))
    seen = {"late": str(hasty.exception(10)), "kept": kept.explain()}
    given_up = rpcfut.rpc_async("w1", add, args=(1,))
    given_up.cancel()
    seen["unconfirmed"] = counters.counters.unconfirmed
    os.kill(pid, signal.SIGCONT)
    seen["value"] = kept.wait(30)
    wait_until(lambda: counters.counters.unconfirmed == 0)
    running = rpcfut.rpc_async("w1", never)
    wait_until(lambda: "returned a future" in running.explain())
    running.cancel()
    seen["unconfirmed before it died"] = counters.counters.unconfirmed
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: counters.counters.unconfirmed == 0)
    rpcfut.shutdown(timeout=20)
    return seen


def take_name(rank: int, count: int, rendezvous: str, name: str) -> str:
    """Join under a given name; returns the error."""
    try:
        rpcfut.init_rpc(name, rank, count, init_method=rendezvous, join_timeout_s=20)
    except rpcfut.RendezvousError as error:
        return f"{type(error).__name__}: {error}"
    rpcfut.shutdown()
    return "joined"


def be_alone(rank: int, count: int, rendezvous: str) -> str:
    """Join a group in which one rank more is wanted than comes."""
    try:
        rpcfut.init_rpc(
            f"w{rank}", rank, count + 1, init_method=rendezvous, join_timeout_s=1
        )
    except rpcfut.RendezvousError as error:
        return f"{type(error).__name__}: {error}"
    return "joined"


def join_twice(rank: int, count: int, rendezvous: str) -> list[int]:
    """Join, call, leave, and all that once more."""
    seen = []
    for turn in range(2):
        rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
        seen.append(rpcfut.rpc_sync(f"w{1 - rank}", add, args=(turn,)))
        rpcfut.shutdown(timeout=20)
    return seen


def leave_without_shutdown(rank: int, count: int, rendezvous: str) -> int:
    """Join, call, and let the process end."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    return rpcfut.rpc_sync(f"w{rank}", add, args=(1,))


def meet_over_tcp(rank: int, count: int, _: str, address: str) -> int:
    """Join over an address, call the next worker, leave."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=address)
    value = rpcfut.rpc_sync((rank + 1) % count, add, args=(rank,))
    rpcfut.shutdown(timeout=20)
    return value


def crash_after_joining(rank: int, count: int, rendezvous: str) -> str:
    """Rank 1 raises once it has been called; rank 0 says what it hears."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank == 1:
        rpcfut.rpc_sync("w0", add, args=(1,))
        raise RuntimeError("on purpose")
    error = rpcfut.rpc_async("w1", never).exception(timeout=20)
    rpcfut.shutdown(timeout=20)
    return str(error)


@rpcfut.expose
def who() -> str:
    return rpcfut.get_worker_info().name


@rpcfut.expose
def relay(to: int) -> str:
    return rpcfut.rpc_sync(to, who)


def relay_at_once(rank: int, count: int, rendezvous: str) -> str | None:
    """Rank 0 has rank 1 call rank 2, as soon as it may."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    name = rpcfut.rpc_sync(1, relay, args=(2,)) if rank == 0 else None
    rpcfut.shutdown(timeout=20)
    return name


def try_twice(rank: int, count: int, rendezvous: str) -> int:
    """Rank 0 gives up once before rank 1 comes."""
    gave_up = Path(rendezvous.removeprefix("file://")).with_name("gave up")
    if rank == 0:
        with contextlib.suppress(rpcfut.MissingWorkersError):
            rpcfut.init_rpc("w0", 0, count, init_method=rendezvous, join_timeout_s=0.01)
        gave_up.touch()
    pause = threading.Event()
    while not gave_up.exists():
        pause.wait(0.01)
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    value = rpcfut.rpc_sync(1 - rank, add, args=(1 - rank,))
    rpcfut.shutdown(timeout=20)
    return value
