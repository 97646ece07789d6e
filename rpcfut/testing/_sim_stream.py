"""Streams and events of the simulated device, and which streams are current."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from rpcfut._devices import Device
    from rpcfut.testing._sim_machine import Machine
    from rpcfut.testing._sim_scheduler import Point, Queue


class SimEvent:
    """A point in a simulated stream. Any thread.

    Made by `Simulation.event` or `SimStream.record_event`. An event that was never
    recorded has passed, as on a real device.
    """

    def __init__(
        self, machine: Machine, currents: CurrentStreams, point: Point | None = None
    ) -> None:
        self._machine = machine
        self._currents = currents
        self._point = point

    def __repr__(self) -> str:
        if self._point is None:
            return "<SimEvent, not recorded>"
        state = "passed" if self._point.has_passed else "waiting"
        return f"<SimEvent on {self._point.queue}, {state}>"

    def record(self, stream: SimStream | None = None) -> None:
        """Mark the end of a stream; what waited for an earlier mark keeps that one.

        Args:
            stream: The stream; by default the one that is current on the current
                device.
        """
        chosen = self._currents.stream() if stream is None else stream
        self._point = self._machine.record(chosen.queue)

    def wait(self, stream: SimStream | None = None) -> None:
        """Have work queued on a stream from now on come after this event.

        Args:
            stream: The stream; by default the one that is current on the current
                device.
        """
        chosen = self._currents.stream() if stream is None else stream
        chosen.wait_event(self)

    def query(self) -> bool:
        """Whether everything before the event has run.

        The seed decides when the answer turns to yes, and it may take long.
        """
        return self._point is None or self._machine.query(self._point)

    def synchronize(self) -> None:
        """Have the host wait for the event. Always ends."""
        if self._point is not None:
            self._machine.synchronize(self._point)

    def queue_wait(self, queue: Queue) -> None:
        """Have a queue wait for the event."""
        if self._point is not None:
            self._machine.wait(queue, self._point)


class SimStream:
    """Work of a simulated device that runs in order. Any thread.

    Made by `Simulation.stream`. As a context manager it is current on its device, for
    the thread that entered it.

    Attributes:
        device: The device.
        queue: Its queue, for the library.
    """

    def __init__(
        self, machine: Machine, currents: CurrentStreams, queue: Queue
    ) -> None:
        self._machine = machine
        self._currents = currents
        self.queue = queue
        self.device: Device = queue.device

    def __repr__(self) -> str:
        return f"<SimStream: {self.queue}, {len(self.queue.tasks)} tasks waiting>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimStream) and other.queue is self.queue

    def __hash__(self) -> int:
        return hash(self.queue)

    def __enter__(self) -> Self:
        self._currents.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._currents.exit()

    def record_event(self) -> SimEvent:
        """Mark the end of this stream; returns a new event."""
        return SimEvent(self._machine, self._currents, self._machine.record(self.queue))

    def wait_event(self, event: SimEvent) -> None:
        """Have work queued here from now on come after an event."""
        event.queue_wait(self.queue)

    def wait_stream(self, stream: SimStream) -> None:
        """Have work queued here from now on come after what `stream` holds now."""
        self._machine.barrier(self.queue, stream.queue)

    def query(self) -> bool:
        """Whether everything queued here has run; as `SimEvent.query`."""
        return self._machine.query_queue(self.queue)

    def synchronize(self) -> None:
        """Have the host wait for everything queued here. Always ends."""
        self._machine.synchronize_queue(self.queue)


class _PerThread(threading.local):
    """What is current for one thread."""

    def __init__(self) -> None:
        self.streams: dict[Device, SimStream] = {}
        self.device: Device | None = None
        self.undo: list[Callable[[], None]] = []


class CurrentStreams:
    """The calling thread's current device, and its current stream of each device.

    Any thread. Each starts with device 0 and the default streams, as in torch.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._here = _PerThread()

    def device(self) -> Device:
        """The calling thread's current device."""
        found = self._here.device
        return self._machine.device(0) if found is None else found

    def stream(self, device: Device | None = None) -> SimStream:
        """The calling thread's current stream, by default of its current device."""
        where = self.device() if device is None else device
        found = self._here.streams.get(where)
        return self.default(where) if found is None else found

    def default(self, device: Device) -> SimStream:
        """The default stream of a device, the same for all threads."""
        return SimStream(self._machine, self, self._machine.default_queue(device))

    def new(self, device: Device) -> SimStream:
        """A new stream."""
        return SimStream(self._machine, self, self._machine.new_queue(device))

    def make_current(
        self, streams: Mapping[Device, SimStream], device: Device | None
    ) -> Callable[[], None]:
        """Make streams current, and a device if given; returns what undoes it."""
        here = self._here
        old_streams = {d: here.streams.get(d) for d in streams}
        old_device = here.device
        here.streams.update(streams)
        if device is not None:
            here.device = device

        def undo() -> None:
            here.device = old_device
            for where, stream in old_streams.items():
                if stream is None:
                    del here.streams[where]
                else:
                    here.streams[where] = stream

        return undo

    def enter(self, stream: SimStream) -> None:
        """Make one stream and its device current, until `exit`."""
        undo = self.make_current({stream.device: stream}, stream.device)
        self._here.undo.append(undo)

    def exit(self) -> None:
        """Undo the last `enter` of this thread."""
        self._here.undo.pop()()
