"""The simulated machine: devices, queues, memory, and what the host knows of them.

Theory of operation. Everything happens under one lock, on the calling thread. Queueing
an operation gives it a vector clock: what its queue knew, and what the host knew. The
host is one, whatever thread runs: it knows what it waited for, and what it queues from
then on comes after that. So whether two accesses are ordered is settled when the second
is queued, before either has run, and does not depend on the seed. Only answers to
`query` do: a yes is an order, and the seed decides when it comes.

A queue under *capture* takes operations and runs none of them; they touch no memory. An
order between it and anything else breaks the capture.

Arrays die at any moment, also inside the lock, when the garbage collector runs there. A
death is therefore only noted; the next call, of whatever kind, sees to it first.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rpcfut._devices import CPU, Device
from rpcfut.testing._sim_clock import VectorClock
from rpcfut.testing._sim_errors import (
    BrokenCaptureError,
    Operation,
    RaceError,
    UseAfterFreeError,
)
from rpcfut.testing._sim_memory import Access, Allocator, Block
from rpcfut.testing._sim_scheduler import Capture, Point, Queue, Scheduler, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rpcfut.testing._sim_errors import AccessKind

DEVICE_TYPE = "sim"
_HOST = "the host"


class Machine:
    """Everything that is simulated. Any thread; no call waits for another thread.

    Args:
        devices: How many devices there are.
        seed: Decides what no event orders.
        memory_nbytes: How much memory each device has; None for no limit.
        raises_at_once: Whether a race is raised where it is queued, which is then not
            queued, or only recorded.
    """

    def __init__(
        self,
        devices: int,
        seed: int,
        memory_nbytes: int | None,
        *,
        raises_at_once: bool,
    ) -> None:
        self._lock = threading.Lock()
        self._devices = devices
        self._raises_at_once = raises_at_once
        self._scheduler = Scheduler(seed)
        self._allocator = Allocator(self._scheduler, memory_nbytes)
        self._host = VectorClock()
        self._queues: list[Queue] = []
        self._defaults: dict[Device, Queue] = {}
        self._used: dict[Device, None] = {}
        self._deaths: deque[tuple[Block, str]] = deque()
        self._races: list[RaceError] = []
        self._unseen: list[tuple[int, int, Callable[[], None]]] = []
        self._is_held = False
        self._is_over = False

    def __repr__(self) -> str:
        return (
            f"<Machine: {len(self._used)} of {self._devices} devices used, "
            f"{len(self._queues)} streams, {self._scheduler!r}, {self._allocator!r}, "
            f"{len(self._races)} races>"
        )

    # ---- devices and queues ---------------------------------------------------------

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return self._devices

    @property
    def used_devices(self) -> list[Device]:
        """The devices that were touched, by index."""
        with self._lock:
            return sorted(self._used)

    def device(self, index: int) -> Device:
        """The device of an index; touches nothing.

        Raises:
            ValueError: When there is no such device.
        """
        if not 0 <= index < self._devices:
            raise ValueError(f"no device {index}: there are {self._devices}, from 0 on")
        return Device(DEVICE_TYPE, index)

    def touch(self, device: Device) -> None:
        """Have a device in use from now on."""
        with self._entered():
            self._used[self.device(device.index)] = None

    def new_queue(self, device: Device) -> Queue:
        """A new queue; the device is in use from now on."""
        with self._entered():
            self._used[self.device(device.index)] = None
            return self._new_queue_locked(device, f"stream {len(self._queues)}")

    def default_queue(self, device: Device) -> Queue:
        """The queue that all threads use by default; touches nothing."""
        with self._lock:
            queue = self._defaults.get(device)
            if queue is None:
                self.device(device.index)
                queue = self._new_queue_locked(device, "the default stream")
                self._defaults[device] = queue
            return queue

    def _new_queue_locked(self, device: Device, name: str) -> Queue:
        queue = Queue(len(self._queues), device, name)
        self._queues.append(queue)
        return queue

    # ---- order ----------------------------------------------------------------------

    def record(self, queue: Queue) -> Point:
        """Mark the end of a queue; its device is in use from now on."""
        with self._ordering("an event on", queue):
            return self._scheduler.mark(queue)

    def record_if_busy(self, queue: Queue) -> Point | None:
        """As `record`, but None if the host knows that all of it has run."""
        with self._ordering("an event on", queue):
            return None if queue.clock <= self._host else self._scheduler.mark(queue)

    def wait(self, queue: Queue, point: Point) -> None:
        """Have what is queued from now on come after a point."""
        with self._ordering("a wait on", queue):
            self._wait_locked(queue, point)

    def barrier(self, queue: Queue, other: Queue) -> None:
        """Have what is queued on `queue` from now on come after `other`'s end."""
        with self._ordering("a wait on or for", queue, other):
            self._wait_locked(queue, self._scheduler.mark(other))

    def synchronize(self, point: Point) -> None:
        """Have the host wait for a point."""
        with self._entered():
            self._force_locked(point)

    def synchronize_queue(self, queue: Queue) -> None:
        """Have the host wait for all that a queue holds."""
        with self._ordering("a wait of the host for", queue):
            self._force_locked(self._scheduler.mark(queue))

    def synchronize_all(self) -> None:
        """Have the host wait for everything."""
        with self._entered():
            for queue in self._queues:
                _refuse_captured("a wait of the host for", queue)
            self._run_all_locked()

    def query(self, point: Point) -> bool:
        """Ask whether a point has passed; a yes is an order."""
        with self._entered():
            return self._query_locked(point.clock, lambda: point)

    def query_queue(self, queue: Queue) -> bool:
        """Ask whether all that a queue holds has run; a yes is an order."""
        with self._ordering("a question about", queue):
            return self._query_locked(queue.clock, lambda: self._scheduler.mark(queue))

    def _query_locked(self, clock: VectorClock, point: Callable[[], Point]) -> bool:
        # A point may have passed without the host knowing it. Then yes and no are both
        # true to life, and a program must not depend on which it is.
        if clock <= self._host:
            return True
        if self._is_held or not self._scheduler.answers_yes():
            return False
        self._force_locked(point())
        return True

    def _wait_locked(self, queue: Queue, point: Point) -> None:
        queue.clock.join(point.clock)
        if not point.has_passed:
            self._scheduler.add(queue, Task(awaits=point))

    def _force_locked(self, point: Point) -> None:
        self._scheduler.force(point)
        self._host.join(point.clock)
        self._show_locked()

    def _run_all_locked(self) -> None:
        self._scheduler.run_all()
        for queue in self._queues:
            self._host.join(queue.clock)
        self._show_locked()

    def _show_locked(self) -> None:
        """Let the host see what it knows to have happened."""
        unseen = []
        for queue, count, show in self._unseen:
            if self._host.covers(queue, count):
                show()
            else:
                unseen.append((queue, count, show))
        self._unseen = unseen

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have every query say no, unless the host waited for what it asks."""
        with self._entered():
            if self._is_held:
                raise ValueError("the devices are held up already, by another `with`")
            self._is_held = True
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False

    # ---- captures -------------------------------------------------------------------

    def begin_capture(self, queue: Queue, site: str) -> None:
        """From now on do not run what is queued, and refuse what orders it."""
        with self._entered():
            queue.capture = Capture(site)

    def end_capture(self, queue: Queue) -> BaseException | None:
        """The queue is as others again; returns what broke the capture."""
        with self._entered():
            capture, queue.capture = queue.capture, None
            return None if capture is None else capture.broken_by

    # ---- memory and operations ------------------------------------------------------

    def allocate(self, queue: Queue, length: int, site: str) -> Block:
        """A block that belongs to a queue; the device is in use from now on."""
        with self._entered():
            self._used[queue.device] = None
            return self._allocator.allocate(queue, length, site)

    def allocate_host(self, length: int, site: str) -> Block:
        """A block of pinned host memory."""
        with self._entered():
            return self._allocator.allocate_host(CPU, length, site)

    def note_death(self, block: Block, site: str) -> None:
        """An array died. Called by the garbage collector: takes no lock."""
        self._deaths.append((block, site))

    def reserved_nbytes(self, device: Device) -> int:
        """How much memory was taken from a device and not given back."""
        with self._entered():
            return self._allocator.reserved_nbytes(device)

    def keep(self, device: Device, pointer: int, queue: Queue) -> None:
        """Do not give a block out again before a queue is through with it.

        Raises:
            LookupError: When no array that lives has its memory there.
        """
        with self._entered():
            block = self._allocator.find(device, pointer)
            if block is None or block.owner.freed_at is not None:
                state = "never given out" if block is None else "freed"
                raise LookupError(
                    f"{device} has no array at {pointer:#x}: this memory was {state}; "
                    "the owner of a DataRef must keep its memory alive"
                )
            self._allocator.keep(block, queue)

    def launch(
        self,
        name: str,
        queue: Queue,
        accesses: Sequence[tuple[Block, AccessKind]],
        run: Callable[[], None],
        site: str,
        show: Callable[[], None] | None = None,
    ) -> None:
        """Queue an operation.

        Args:
            name: What the user called.
            queue: Where to.
            accesses: The blocks that it reads and writes, ``"read"`` or ``"write"``.
            run: Does it, on the blocks' data.
            site: ``file:line`` of the user's frame.
            show: Called once the host knows that it has run, perhaps long after `run`.

        Raises:
            RaceError: When an earlier access is not ordered before one of these; the
                operation is not queued.
        """
        with self._entered():
            if queue.capture is not None:
                return
            queue.clock.join(self._host)
            operations = [
                Operation(name=name, kind=kind, place=str(queue), site=site)
                for _, kind in accesses
            ]
            for (block, _), operation in zip(accesses, operations, strict=True):
                self._check_locked(block, operation, queue.clock)
            count = queue.clock.tick(queue.number)
            for (block, _), operation in zip(accesses, operations, strict=True):
                block.remember(Access(operation, queue.number, count, block.owner))
            if show is not None:
                self._unseen.append((queue.number, count, show))
            self._scheduler.add(queue, Task(run=run))

    def access_on_host(
        self,
        name: str,
        block: Block,
        kind: AccessKind,
        run: Callable[[], None],
        site: str,
    ) -> None:
        """Read or write a block by the host, at once.

        Raises:
            RaceError: When the host does not know that an earlier access has run.
        """
        with self._entered():
            operation = Operation(name=name, kind=kind, place=_HOST, site=site)
            self._check_locked(block, operation, self._host)
            run()

    def _check_locked(
        self, block: Block, operation: Operation, clock: VectorClock
    ) -> None:
        first = block.find_unordered(clock, operation.kind)
        if first is None:
            return
        error: RaceError
        if first.allocation is block.owner:
            error = RaceError(first.operation, operation, block.owner)
        else:
            error = UseAfterFreeError(
                first.operation, operation, block.owner, first.allocation
            )
        self._races.append(error)
        if self._raises_at_once:
            raise error

    # ---- the end --------------------------------------------------------------------

    def take_races(self) -> list[RaceError]:
        """The races that were found and not taken before."""
        with self._lock:
            races, self._races = self._races, []
            return races

    def close(self) -> None:
        """Run everything; nothing can be queued from now on. Idempotent."""
        with self._lock:
            if not self._is_over:
                self._bury_locked()
                self._run_all_locked()
                self._is_over = True

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self._lock:
            if self._is_over:
                raise RuntimeError("the simulation is over: its `with` block has ended")
            self._bury_locked()
            yield

    @contextmanager
    def _ordering(self, act: str, *queues: Queue) -> Iterator[None]:
        """As `_entered`, to order what queues hold; their devices are in use then."""
        with self._entered():
            for queue in queues:
                _refuse_captured(act, queue)
                self._used[queue.device] = None
            yield

    def _bury_locked(self) -> None:
        while self._deaths:
            self._allocator.free(*self._deaths.popleft())


def _refuse_captured(act: str, queue: Queue) -> None:
    if queue.capture is None:
        return
    error = BrokenCaptureError(
        f"{act} {queue}, which is being captured since {queue.capture.site}: this "
        "breaks the capture; do it before or after that"
    )
    queue.capture.broken_by = queue.capture.broken_by or error
    raise error
