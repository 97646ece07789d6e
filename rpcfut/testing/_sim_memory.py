"""Memory of the simulated devices, and an allocator that gives it out again at once.

Theory of operation. A *block* goes through the hands of several *allocations*. As in
torch's caching allocator, a block belongs to the queue that was current when it was
made; when its array dies it may go to the next allocation on that queue, at once, while
work on the old array still waits: the queue's order makes that right for the queue's
own work. For other queues somebody must have called `keep`; then the block is given out
only when what these queues held at the time of the death has run, which the allocator
forces if it wants the block.

Each block remembers the accesses to it. Two of them that touch the same block, at least
one a write, must be ordered; an access that was kept and has run when the block changed
hands is forgotten then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rpcfut.testing._sim_errors import Allocation, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rpcfut._devices import Device
    from rpcfut.testing._sim_clock import VectorClock
    from rpcfut.testing._sim_errors import AccessKind
    from rpcfut.testing._sim_scheduler import Point, Queue, Scheduler

ITEM_NBYTES = 8
_GRAIN = 64  # elements; as torch, which rounds up to 512 bytes
_DEVICE_STRIDE = 1 << 40  # bytes of address space for each device
_GARBAGE = float("nan")


@dataclass(frozen=True, slots=True)
class Access:
    """An operation on a block: the `count`-th of its queue."""

    operation: Operation
    queue: int
    count: int
    allocation: Allocation


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of memory; guarded by the simulation's lock."""

    device: Device
    pointer: int
    home: Queue | None
    data: list[float]
    owner: Allocation
    kept: dict[int, Queue] = field(default_factory=dict)
    waits: list[Point] = field(default_factory=list)
    _reads: dict[int, Access] = field(default_factory=dict)
    _writes: dict[int, Access] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the block, which may be more than its owner asked for."""
        return len(self.data) * ITEM_NBYTES

    def find_unordered(self, clock: VectorClock, kind: AccessKind) -> Access | None:
        """The last access that conflicts with a new one and is not ordered before it.

        Args:
            clock: What has happened before the new access.
            kind: ``"read"`` or ``"write"``; two reads do not conflict.
        """
        known = [self._writes] if kind == "read" else [self._writes, self._reads]
        unordered = [
            access
            for accesses in known
            for access in accesses.values()
            if not clock.covers(access.queue, access.count)
        ]
        return unordered[-1] if unordered else None

    def remember(self, access: Access) -> None:
        """Add an access; earlier ones on its queue and of its kind come before it."""
        accesses = self._reads if access.operation.kind == "read" else self._writes
        accesses.pop(access.queue, None)
        accesses[access.queue] = access

    def forget(self, clock: VectorClock) -> None:
        """Drop the accesses that have happened."""
        for accesses in (self._reads, self._writes):
            for access in tuple(accesses.values()):
                if clock.covers(access.queue, access.count):
                    del accesses[access.queue]


class Allocator:
    """Gives out blocks and takes them back. Guarded by the simulation's lock.

    Args:
        scheduler: Runs what a kept block waits for.
        memory_nbytes: How much each device has; None for no limit.
    """

    def __init__(self, scheduler: Scheduler, memory_nbytes: int | None) -> None:
        self._scheduler = scheduler
        self._memory_nbytes = memory_nbytes
        self._allocations = 0
        self._next_pointers: dict[Device, int] = {}
        self._free: dict[tuple[int, int], list[Block]] = {}
        self._blocks: dict[tuple[Device, int], Block] = {}
        self._held_nbytes: dict[Device, int] = {}

    def __repr__(self) -> str:
        free = sum(map(len, self._free.values()))
        return f"<Allocator, {len(self._blocks)} blocks, {free} of them free>"

    def allocate(self, home: Queue, length: int, site: str) -> Block:
        """A block for `length` elements, the last one that was freed if one fits.

        Raises:
            MemoryError: When the device is full.
        """
        size = -(-max(length, 1) // _GRAIN) * _GRAIN
        owner = self._own(length, site)
        free = self._free.get((home.number, size))
        if free:
            block = free.pop()
            self._settle(block)
            block.owner = owner
            return block
        self._make_room(home.device, size * ITEM_NBYTES)
        return self._new(home.device, home, size, owner)

    def allocate_host(self, device: Device, length: int, site: str) -> Block:
        """A block of pinned host memory; such blocks are not used again."""
        return self._new(device, None, length, self._own(length, site))

    def free(self, block: Block, site: str) -> None:
        """Take a block back whose array died at `site`."""
        block.owner.freed_at = site
        if block.home is None:
            del self._blocks[block.device, block.pointer]
            return
        block.waits = [self._scheduler.mark(queue) for queue in block.kept.values()]
        block.kept = {}
        key = (block.home.number, len(block.data))
        self._free.setdefault(key, []).append(block)

    def find(self, device: Device, pointer: int) -> Block | None:
        """The block that starts at a pointer."""
        return self._blocks.get((device, pointer))

    def keep(self, block: Block, queue: Queue) -> None:
        """Do not give the block out before `queue` is through with it."""
        if queue is not block.home:
            block.kept[queue.number] = queue

    def reserved_nbytes(self, device: Device) -> int:
        """The size of all blocks of a device, free ones too."""
        return self._held_nbytes.get(device, 0)

    def _own(self, length: int, site: str) -> Allocation:
        self._allocations += 1
        return Allocation(number=self._allocations, length=length, site=site)

    def _new(
        self, device: Device, home: Queue | None, size: int, owner: Allocation
    ) -> Block:
        default = (device.index + 1) * _DEVICE_STRIDE if home is not None else _GRAIN
        pointer = self._next_pointers.get(device, default)
        block = Block(device, pointer, home, [_GARBAGE] * size, owner)
        self._next_pointers[device] = pointer + max(block.nbytes, ITEM_NBYTES)
        self._blocks[device, pointer] = block
        held = self._held_nbytes.get(device, 0)
        self._held_nbytes[device] = held + block.nbytes
        return block

    def _settle(self, block: Block) -> None:
        """Run what a freed block waits for, and forget the accesses before it."""
        for point in block.waits:
            self._scheduler.force(point)
            # What the allocator saw orders nothing but the use of this block.
            block.forget(point.clock)
        block.waits = []

    def _make_room(self, device: Device, nbytes: int) -> None:
        limit = self._memory_nbytes
        if limit is None or self._held_nbytes.get(device, 0) + nbytes <= limit:
            return
        self._scheduler.run_all()  # as the driver does before it takes memory back
        self._drop_free(device)
        held = self._held_nbytes.get(device, 0)
        if held + nbytes > limit:
            raise MemoryError(
                f"{nbytes} bytes wanted on {device}: {held} of {limit} are in use"
            )

    def _drop_free(self, device: Device) -> None:
        for blocks in self._free.values():
            for block in _take_all(blocks, device):
                del self._blocks[device, block.pointer]
                self._held_nbytes[device] -= block.nbytes


def _take_all(blocks: list[Block], device: Device) -> Iterable[Block]:
    found = [block for block in blocks if block.device == device]
    blocks[:] = [block for block in blocks if block.device != device]
    return found
