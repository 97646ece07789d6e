"""Arrays of the simulated device.

Theory of operation. An array names a block of memory; the operations that it queued
hold the block, not the array, so that an array dies when the program drops it, as a
tensor does. What an operation computes is worked out when the scheduler runs it, on
whatever the block holds then.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from rpcfut._call_info import call_site
from rpcfut._memory import DataRef
from rpcfut.testing._sim_memory import ITEM_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rpcfut._devices import Device
    from rpcfut.testing._sim_errors import AccessKind
    from rpcfut.testing._sim_machine import Machine
    from rpcfut.testing._sim_memory import Block
    from rpcfut.testing._sim_scheduler import Queue
    from rpcfut.testing._sim_stream import CurrentStreams, SimStream


class _Memory:
    """What device arrays and host buffers share: a block that is freed with them."""

    __slots__ = ("__weakref__", "_block", "_currents", "_length", "_machine")

    def __init__(
        self, machine: Machine, currents: CurrentStreams, block: Block, length: int
    ) -> None:
        self._machine = machine
        self._currents = currents
        self._block = block
        self._length = length

    def __del__(self) -> None:
        self._machine.note_death(self._block, call_site())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._length} elements on {self.device}>"

    def __len__(self) -> int:
        return self._length

    @property
    def device(self) -> Device:
        """Where the memory lies."""
        return self._block.device

    def _read_on_host(self, name: str) -> list[float]:
        found: list[float] = []
        self._machine.access_on_host(
            name,
            self._block,
            "read",
            lambda: found.extend(self._block.data[: self._length]),
            call_site(),
        )
        return found

    def _overwrite(
        self,
        name: str,
        queue: Queue,
        sources: Sequence[_Memory],
        compute: Callable[..., list[float]],
    ) -> None:
        length = self._length
        for source in sources:
            if len(source) != length:
                raise ValueError(f"{name} of {self!r} and {source!r}: lengths differ")
        into = self._block
        blocks = [source._block for source in sources]  # noqa: SLF001 - of this class

        def run() -> None:
            values = [block.data[:length] for block in blocks]
            into.data[:length] = compute(*values) if blocks else compute(length)

        accesses: list[tuple[Block, AccessKind]] = [
            (block, "read") for block in blocks if block is not into
        ]
        accesses.append((into, "write"))
        self._machine.launch(name, queue, accesses, run, call_site())


class HostBuffer(_Memory):
    """Pinned host memory: devices copy to and from it while the host goes on.

    Made by `Simulation.host_buffer`. The host reads and writes it at once, and never
    waits: a `RaceError` if a copy may still be under way.
    """

    __slots__ = ()

    def tolist(self) -> list[float]:
        """Read it, at once.

        Raises:
            RaceError: When the host has not waited for a copy to it.
        """
        return self._read_on_host("tolist")

    def write(self, values: Iterable[float]) -> None:
        """Write to it, at once.

        Raises:
            ValueError: When these are not as many values as it has elements.
            RaceError: When the host has not waited for a copy from or to it.
        """
        new = [float(value) for value in values]
        if len(new) != self._length:
            raise ValueError(f"{len(new)} values for {self!r}")

        def run() -> None:
            self._block.data[:] = new

        self._machine.access_on_host("write", self._block, "write", run, call_site())

    def receive(self, name: str, queue: Queue, source: SimArray) -> None:
        """Queue a copy of an array to it; see `SimArray.copy_to_host`."""
        self._overwrite(name, queue, (source,), _same)


class SimArray(_Memory):
    """A one-dimensional array of floats on a simulated device.

    Made by `Simulation.array`, `zeros` and `empty`. Each operation is queued on the
    stream of the array's device that is current for the calling thread, and is checked
    there and then against all earlier operations on the same memory. Any thread.
    """

    __slots__ = ()

    @property
    def ref(self) -> DataRef:
        """The array's memory, for an extractor (EXT-1)."""
        block = self._block
        nbytes = self._length * ITEM_NBYTES
        return DataRef(block.device, block.pointer, nbytes, self)

    def fill_(self, value: float) -> SimArray:
        """Set all elements to a number."""
        self.launch("fill_", (), lambda n: [float(value)] * n)
        return self

    def load_(self, values: Iterable[float]) -> SimArray:
        """Set the elements to numbers that the host knows now.

        Raises:
            ValueError: When these are not as many as it has elements.
        """
        new = [float(value) for value in values]
        if len(new) != self._length:
            raise ValueError(f"{len(new)} values for {self!r}")
        self.launch("load_", (), lambda _n: new)
        return self

    def add_(self, other: SimArray | float) -> SimArray:
        """Add a number, or an array of the same length on the same device."""
        return self._combine("add_", operator.add, self, other)

    def mul_(self, other: SimArray | float) -> SimArray:
        """Multiply by a number, or by an array, as `add_`."""
        return self._combine("mul_", operator.mul, self, other)

    def copy_(self, source: SimArray | HostBuffer) -> SimArray:
        """Copy another array or a host buffer of the same length to this one.

        Between devices, the copy is queued on the current stream of the *source*'s
        device, as in torch: that stream first waits for this device's current stream,
        which waits for the copy afterwards. From a host buffer the host does not wait.
        """
        here = self._currents.stream(self.device).queue
        if isinstance(source, HostBuffer) or source.device == self.device:
            self._overwrite("copy_", here, (source,), _same)
            return self
        there = self._currents.stream(source.device).queue
        self._machine.barrier(there, here)
        self._overwrite("copy_", there, (source,), _same)
        self._machine.barrier(here, there)
        return self

    def copy_to_host(self, buffer: HostBuffer) -> None:
        """Copy to a host buffer of the same length. The host does not wait."""
        here = self._currents.stream(self.device).queue
        buffer.receive("copy_to_host", here, self)

    def copy_to_bytes(self, name: str, write: Callable[[list[float]], None]) -> None:
        """Queue a copy to plain host memory, for the library. The host does not wait.

        Args:
            name: What to call it in messages.
            write: Is given the elements once the host knows that the copy has run; a
                host that looks earlier sees what was there before, whatever the seed.
        """
        block, length = self._block, self._length
        queue = self._currents.stream(self.device).queue
        copied: list[float] = []
        self._machine.launch(
            name,
            queue,
            [(block, "read")],
            lambda: copied.extend(block.data[:length]),
            call_site(),
            show=lambda: write(copied),
        )

    def clone(self) -> SimArray:
        """A new array with the same elements, on the same device."""
        return self._like(self.device).launch("clone", (self,), _same)

    def to(self, device: Device) -> SimArray:
        """A new array with the same elements on a device; see `copy_`."""
        return self._like(device).copy_(self)

    def __add__(self, other: SimArray | float) -> SimArray:
        return self._like(self.device)._combine("+", operator.add, self, other)

    def __mul__(self, other: SimArray | float) -> SimArray:
        return self._like(self.device)._combine("*", operator.mul, self, other)

    def keep_alive(self, stream: SimStream) -> None:
        """Tell the allocator that a stream uses this array, as ``record_stream``.

        When the array has died, its memory goes to nobody before the stream is through
        with what it held then.
        """
        self._machine.keep(self._block.device, self._block.pointer, stream.queue)

    def tolist(self) -> list[float]:
        """Have the host wait for the current stream of this device, and read.

        Raises:
            RaceError: When something wrote to the array that this does not wait for.
        """
        self._machine.synchronize_queue(self._currents.stream(self.device).queue)
        return self._read_on_host("tolist")

    def launch(
        self,
        name: str,
        sources: Sequence[SimArray],
        compute: Callable[..., list[float]],
    ) -> SimArray:
        """Queue an operation of your own that sets all elements of this array.

        Args:
            name: What to call it in messages.
            sources: The arrays that it reads, of the same length and on this device.
            compute: Is given the sources' elements, a list for each, or without
                sources the length; returns this array's elements. It runs when the
                scheduler says so, on any thread, and must not touch arrays.

        Returns:
            This array.

        Raises:
            RaceError: When it is not ordered behind an earlier operation; it is not
                queued then.
            ValueError: When a source has another length, or is on another device.
        """
        for source in sources:
            if source.device != self.device:
                raise ValueError(
                    f"{name} of {self!r} and {source!r}: copy one of them with to()"
                )
        here = self._currents.stream(self.device).queue
        self._overwrite(name, here, sources, compute)
        return self

    # ---- inside ---------------------------------------------------------------------

    def _combine(
        self,
        name: str,
        function: Callable[[float, float], float],
        first: SimArray,
        other: SimArray | float,
    ) -> SimArray:
        if isinstance(other, SimArray):
            return self.launch(
                name, (first, other), lambda a, b: list(map(function, a, b))
            )
        number = float(other)
        return self.launch(name, (first,), lambda a: [function(x, number) for x in a])

    def _like(self, device: Device) -> SimArray:
        return new_array(self._machine, self._currents, device, self._length)


def new_array(
    machine: Machine, currents: CurrentStreams, device: Device, length: int
) -> SimArray:
    """A new array, on the current stream of a device; its elements are garbage.

    Raises:
        MemoryError: When the device is full.
    """
    queue = currents.stream(device).queue
    block = machine.allocate(queue, length, call_site())
    return SimArray(machine, currents, block, length)


def _same(values: list[float]) -> list[float]:
    return values
