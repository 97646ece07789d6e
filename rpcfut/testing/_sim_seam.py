"""The seam from futures to the simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpcfut._stream_pool import StreamPool
from rpcfut._streams import seam_of
from rpcfut.testing import _sim_wire
from rpcfut.testing._sim_stream import SimEvent, SimStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from rpcfut._devices import Device
    from rpcfut._memory import DataRef
    from rpcfut._seam import Event
    from rpcfut.testing._sim_array import SimArray
    from rpcfut.testing._sim_machine import Machine
    from rpcfut.testing._sim_stream import CurrentStreams


class SimSeam:
    """Streams and events of simulated devices. Any thread; waits for nothing."""

    def __init__(self, machine: Machine, currents: CurrentStreams) -> None:
        self._machine = machine
        self._currents = currents

    @property
    def used_devices(self) -> Sequence[Device]:
        """The devices that were touched."""
        return self._machine.used_devices

    def current_stream(self, device: Device) -> SimStream:
        """The calling thread's current stream on `device`."""
        return self._currents.stream(device)

    def is_capturing(self, device: Device) -> bool:
        """Whether that stream is inside `Simulation.capture`."""
        return self._currents.stream(device).queue.capture is not None

    @property
    def current_device(self) -> Device:
        """The calling thread's current device."""
        return self._currents.device()

    def create_stream(self, device: Device) -> SimStream:
        """A new stream that nobody else uses."""
        return self._currents.new(device)

    def make_current(
        self, streams: Mapping[Device, Any], device: Device | None
    ) -> Callable[[], None]:
        """Make `streams` current, and `device` if given; returns what undoes it."""
        return self._currents.make_current(streams, device)

    def record(self, stream: SimStream) -> Event | None:
        """An event at the end of `stream`; None if the host knows that it is empty.

        Work that happens to have run, but that nobody waited for, counts as queued: a
        missing event is then found whatever the seed.
        """
        point = self._machine.record_if_busy(stream.queue)
        return None if point is None else SimEvent(self._machine, self._currents, point)

    def wait(self, stream: SimStream, event: Event) -> None:
        """Have work queued on `stream` from now on wait for `event`."""
        assert isinstance(event, SimEvent)
        stream.wait_event(event)

    def keep_alive(self, ref: DataRef, stream: SimStream) -> None:
        """Tell the allocator that `stream` reads the memory of `ref`.

        Raises:
            LookupError: When no array that lives has its memory there.
        """
        self._machine.keep(ref.device, ref.pointer, stream.queue)

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return self._machine.device_count

    def copy_to_host(self, source: SimArray) -> bytearray:
        """Queue a copy of an array to host memory, garbage until then."""
        return _sim_wire.copy_to_host(source)

    def copy_from_host(self, tensor: torch.Tensor, device: Device) -> SimArray:
        """Make an array of received elements.

        Raises:
            DecodeError: When these are no elements of an array.
        """
        return _sim_wire.copy_from_host(self._machine, self._currents, tensor, device)


class FreshStreams(StreamPool):
    """Pool streams that are never handed out again.

    That two callbacks happened to get one stream would order them, by luck. Nobody
    promised that, so the simulation does not give it.
    """

    def lease(self, device: Device) -> tuple[Any, Callable[[], None]]:
        """Make a stream of `device`; returns it and what gives it back."""
        return seam_of(device).create_stream(device), _drop


def _drop() -> None:
    """Nobody else gets the stream."""
