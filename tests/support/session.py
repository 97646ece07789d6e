"""What processes run in tests of joining, leaving and restarting."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import rpcfut
import rpcfut.testing
from rpcfut.transport import MonotonicClock
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 30.0
_gates: dict[str, threading.Event] = {}


@rpcfut.expose
def name_here() -> str:
    return rpcfut.get_worker_info().name


@rpcfut.expose
def ask(to: str) -> str:
    """Whom another worker finds under a name."""
    return rpcfut.rpc_sync(to, name_here)


@rpcfut.expose
def names_here() -> list[str]:
    return [worker.name for worker in rpcfut.get_worker_infos()]


@rpcfut.expose
def pid_here() -> int:
    return os.getpid()


@rpcfut.expose
def open_gate(name: str) -> None:
    _gate(name).set()


@rpcfut.expose
def wait_at_gate(name: str) -> str:
    """Run until somebody opens the gate."""
    if not _gate(name).wait(PATIENCE_S):
        raise TimeoutError(f"nobody opened {name!r}")
    return "through"


@rpcfut.expose
def add_up_batches() -> float:
    """Use a data loader with forked workers, as training code does."""
    data = DataLoader(
        TensorDataset(torch.arange(8.0)),
        batch_size=2,
        num_workers=2,
        multiprocessing_context="fork",
    )
    return sum(float(batch.sum()) for (batch,) in data)


def _gate(name: str) -> threading.Event:
    return _gates.setdefault(name, threading.Event())


class Events:
    """A callback of watch_workers that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, event: rpcfut.WorkerEvent) -> None:
        self.seen.append(f"{event.worker.name} {event.kind}")

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.seen, PATIENCE_S)


@contextlib.contextmanager
def complaints() -> Iterator[list[str]]:
    """What the library logs from warnings on."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logging.getLogger("rpcfut").addHandler(handler)
    logging.getLogger("rpcfut_transport").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("rpcfut").removeHandler(handler)
        logging.getLogger("rpcfut_transport").removeHandler(handler)


# ---- groups of fixed size: function(rank, count, rendezvous, ...) ------------------


def join_and_call(rank: int, count: int, rendezvous: str, max_threads: int) -> Any:
    """Join, call the next one, leave; when all imports were done, and it had joined."""
    start_s = MonotonicClock().now_s()
    rpcfut.init_rpc(
        f"w{rank}", rank, count, init_method=rendezvous, max_threads=max_threads
    )
    joined_s = MonotonicClock().now_s()
    name = rpcfut.rpc_sync((rank + 1) % count, name_here)
    rpcfut.shutdown(timeout=PATIENCE_S)
    return name, start_s, joined_s


def join_and_leave_often(
    rank: int, count: int, rendezvous: str, times: int, address: str
) -> list[str]:
    names = []
    for turn in range(times):
        rpcfut.init_rpc(
            f"w{rank}-{turn}", rank, count, init_method=address or rendezvous
        )
        names.append(rpcfut.rpc_sync((rank + 1) % count, name_here))
        rpcfut.shutdown(timeout=PATIENCE_S)
    return names


def stop_without_one(rank: int, count: int, rendezvous: str) -> Any:
    """The last rank is killed; the others stop, and say what they complained of."""
    with complaints() as said:
        rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
        if rank == count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rpcfut.shutdown(timeout=PATIENCE_S)
        rpcfut.shutdown(timeout=PATIENCE_S)
    return said


def stop_while_serving(
    rank: int, count: int, rendezvous: str, patience_s: float
) -> Any:
    """Rank 0 is called by rank 1 and stops, with some patience, meanwhile."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank == 1:
        future = rpcfut.rpc_async("w0", wait_at_gate, args=("end",))
        rpcfut.rpc_sync("w0", open_gate, args=("begun",))
        ended = repr(future.exception(PATIENCE_S) or future.wait())
        rpcfut.shutdown(timeout=PATIENCE_S)
        return ended
    wait_at_gate("begun")
    with complaints() as said:
        if patience_s >= PATIENCE_S:
            threading.Timer(0.3, open_gate, ("end",)).start()
        rpcfut.shutdown(timeout=patience_s)
    open_gate("end")
    return said


def leave_in_turn(rank: int, count: int, rendezvous: str, order: list[int]) -> Any:
    """Each leaves for itself after the one before it in `order` has."""
    with complaints() as said:
        rpcfut.init_rpc(f"w{rank}", init_method=rendezvous)
        events = Events()
        rpcfut.watch_workers(events)
        for other in range(count):
            events.wait_for(f"w{other} joined")
        place = order.index(rank)
        answer = rpcfut.rpc_sync(f"w{order[-1]}", name_here)
        # Nobody leaves before all have called the last one.
        rpcfut.rpc_sync(f"w{order[-1]}", arrive, args=(rank,))
        if place == 0:
            wait_until(lambda: _has_all_arrived(order[-1], count), PATIENCE_S)
        else:
            events.wait_for(f"w{order[place - 1]} left")
        rpcfut.shutdown(timeout=PATIENCE_S)
    return said, answer


_arrived: set[int] = set()


@rpcfut.expose
def arrive(rank: int) -> None:
    _arrived.add(rank)


@rpcfut.expose
def arrived() -> int:
    return len(_arrived)


def _has_all_arrived(last: int, count: int) -> bool:
    return rpcfut.rpc_sync(f"w{last}", arrived) == count


def fork_and_go_on(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 forks; the child calls and ends, and the parent calls on."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    seen = []
    if rank == 0:
        before = rpcfut.rpc_async("w1", wait_at_gate, args=("end",))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                rpcfut.rpc_sync("w1", name_here, timeout=5)
                os.write(write, b"no error")
            except BaseException as error:  # noqa: BLE001 - told to the parent
                os.write(write, repr(error).encode())
            rpcfut.shutdown()
            atexit._run_exitfuncs()
            os._exit(0)
        seen.append(os.read(read, 1000).decode())
        seen.append(os.waitpid(pid, 0)[1])
        rpcfut.rpc_sync("w1", open_gate, args=("end",))
        seen.append(before.wait(PATIENCE_S))
    rpcfut.shutdown(timeout=PATIENCE_S)
    return seen


def load_data_there(rank: int, count: int, rendezvous: str) -> Any:
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    value = rpcfut.rpc_sync("w1", add_up_batches) if rank == 0 else None
    after = rpcfut.rpc_sync(f"w{1 - rank}", name_here)
    rpcfut.shutdown(timeout=PATIENCE_S)
    return value, after


def serve_until_told(rank: int, count: int, rendezvous: str) -> Any:
    """Serve, and say whom it saw come and go."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    events = Events()
    rpcfut.watch_workers(events)
    wait_at_gate("end")
    rpcfut.shutdown(timeout=PATIENCE_S)
    return events.seen


def see_a_return(rank: int, count: int, rendezvous: str, folder: str) -> Any:
    """Rank 0 kills w1, and calls the one that takes its place."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        rpcfut.rpc_sync("w0", open_gate, args=(f"w{rank} has joined",))
        rpcfut.shutdown(timeout=2 * PATIENCE_S)
        return None
    for other in range(1, count):
        wait_at_gate(f"w{other} has joined")
    events = Events()
    rpcfut.watch_workers(events)
    first = rpcfut.rpc_sync("w1", pid_here)
    os.kill(first, signal.SIGKILL)
    events.wait_for("w1 lost")
    try:
        rpcfut.rpc_sync("w1", pid_here)
        gone = "it answered"
    except rpcfut.PeerLostError as error:
        gone = str(error)
    Path(folder, "lost").touch()
    wait_at_gate("w1 is back")
    second = rpcfut.rpc_sync("w1", pid_here)
    events.wait_for("w1 lost")
    seen = {
        "gone": gone,
        "is another": first != second,
        "asked by w2": rpcfut.rpc_sync("w2", ask, args=("w1",)),
        "asks w2": rpcfut.rpc_sync("w1", ask, args=("w2",)),
        "events": list(events.seen),
        "names": names_here(),
    }
    rpcfut.shutdown(timeout=PATIENCE_S)
    return seen


def come_back(rank: int, count: int, rendezvous: str) -> Any:
    """Take the place of a rank that ended."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    names = names_here()
    answers = [rpcfut.rpc_sync(name, name_here) for name in names]
    rpcfut.rpc_sync("w0", open_gate, args=(f"w{rank} is back",))
    rpcfut.shutdown(timeout=PATIENCE_S)
    return names, answers


# ---- open groups ---------------------------------------------------------------------


def host_an_open_group(rendezvous: str, wanted: str) -> Any:
    """Join, wait until an event was seen and a worker said goodbye; what was seen."""
    with complaints() as said:
        rpcfut.init_rpc("host", init_method=rendezvous)
        events = Events()
        rpcfut.watch_workers(events)
        events.wait_for(wanted)
        rpcfut.shutdown(timeout=PATIENCE_S)
    return events.seen, said


def visit_an_open_group(name: str, rendezvous: str) -> Any:
    """Join, call everybody, be called, leave."""
    rpcfut.init_rpc(name, init_method=rendezvous, join_timeout_s=PATIENCE_S)
    wait_until(lambda: "host" in names_here(), PATIENCE_S)
    info = rpcfut.get_worker_info()
    answers = [rpcfut.rpc_sync(w, name_here) for w in rpcfut.get_worker_infos()]
    called = rpcfut.rpc_sync("host", ask, args=(name,))
    rpcfut.shutdown(timeout=PATIENCE_S)
    return info.rank, answers, called


def join_together(name: str, rendezvous: str, count: int) -> Any:
    """Join an open group at the same time as others; call all of them."""
    rpcfut.init_rpc(name, init_method=rendezvous, join_timeout_s=PATIENCE_S)
    wait_until(lambda: len(rpcfut.get_worker_infos()) == count, PATIENCE_S)
    names = sorted(rpcfut.rpc_sync(w, name_here) for w in rpcfut.get_worker_infos())
    rpcfut.rpc_sync(0, arrive, args=(rpcfut.get_worker_info().rank,))
    wait_until(lambda: rpcfut.rpc_sync(0, arrived) == count, PATIENCE_S)
    if rpcfut.get_worker_info().rank == 0:
        events = Events()
        rpcfut.watch_workers(events)
        wait_until(lambda: len(rpcfut.get_worker_infos()) == 1, PATIENCE_S)
    ranks = rpcfut.get_worker_info().rank
    rpcfut.shutdown(timeout=PATIENCE_S)
    return ranks, names


def join_and_die(name: str, rendezvous: str) -> None:
    rpcfut.init_rpc(name, init_method=rendezvous)
    os.kill(os.getpid(), signal.SIGKILL)


def try_to_join(name: str, rendezvous: str) -> str:
    try:
        rpcfut.init_rpc(name, init_method=rendezvous, join_timeout_s=PATIENCE_S)
    except rpcfut.RpcError as error:
        return f"{type(error).__name__}: {error}"
    rpcfut.shutdown(timeout=PATIENCE_S)
    return "joined"


@rpcfut.expose
def watch_here(name: str) -> list[str]:
    """Wait until a worker of that name is known; then all that are."""
    wait_until(lambda: name in names_here(), PATIENCE_S)
    return names_here()


# ---- helpers of a driver -------------------------------------------------------------


def drive_and_die(folder: str) -> None:
    """Start helpers, say who they are, and be killed; leave things in `folder` only."""
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    with rpcfut.testing.process_cluster("a", "b", expose=["tests.support.session"]):
        pids = [rpcfut.rpc_sync(name, pid_here) for name in ("a", "b")]
        rpcfut.rpc_async("a", wait_at_gate, args=("never",))
        Path(folder, "pids").write_text(" ".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)


def drive(names: list[str]) -> list[str]:
    with rpcfut.testing.process_cluster(*names, expose=["tests.support.session"]):
        return [rpcfut.rpc_sync(name, name_here) for name in names]
