"""The simulated device: what users call."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rpcfut import _callbacks
from rpcfut._call_info import call_site
from rpcfut._devices import Device
from rpcfut._registry import isolated_registry
from rpcfut._streams import installed_seam
from rpcfut.testing import _sim_wire
from rpcfut.testing._sim_array import HostBuffer, SimArray, new_array
from rpcfut.testing._sim_machine import DEVICE_TYPE, Machine
from rpcfut.testing._sim_seam import FreshStreams, SimSeam
from rpcfut.testing._sim_stream import CurrentStreams, SimEvent, SimStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from rpcfut.testing._sim_errors import RaceError


class Simulation:
    """Simulated devices: arrays, streams, events. Any thread. Made by `simulate`.

    A device is given by its index, or as a `Device`; left out, it is the calling
    thread's current one, which is device 0 at first.
    """

    def __init__(self, machine: Machine, currents: CurrentStreams) -> None:
        self._machine = machine
        self._currents = currents

    def __repr__(self) -> str:
        return f"<Simulation {self._machine!r}>"

    # ---- arrays ---------------------------------------------------------------------

    def array(
        self, values: Sequence[float], device: int | Device | None = None
    ) -> SimArray:
        """A new array; a copy of `values` to it is queued on the current stream.

        Raises:
            MemoryError: When the device is full.
        """
        return self.empty(len(values), device).load_(values)

    def zeros(self, length: int, device: int | Device | None = None) -> SimArray:
        """A new array of zeros; setting them is queued on the current stream.

        Raises:
            MemoryError: When the device is full.
        """
        return self.empty(length, device).fill_(0.0)

    def empty(self, length: int, device: int | Device | None = None) -> SimArray:
        """A new array of whatever was in its memory before.

        It takes the memory of the last array that died and was made on the same
        stream, if that is large enough.

        Raises:
            MemoryError: When the device is full.
        """
        where = self._device(device)
        return new_array(self._machine, self._currents, where, length)

    def host_buffer(self, length: int) -> HostBuffer:
        """Pinned host memory, of zeros."""
        block = self._machine.allocate_host(length, call_site())
        buffer = HostBuffer(self._machine, self._currents, block, length)
        buffer.write([0.0] * length)
        return buffer

    def host_read(self, array: SimArray) -> list[float]:
        """Same as `SimArray.tolist`."""
        return array.tolist()

    # ---- devices, streams, events ---------------------------------------------------

    def device(self, index: int) -> Device:
        """A device, which counts as used from now on, as one with a live context.

        Raises:
            ValueError: When there is no such device.
        """
        found = self._machine.device(index)
        self._machine.touch(found)
        return found

    @property
    def used_devices(self) -> Sequence[Device]:
        """The devices that were used."""
        return self._machine.used_devices

    def current_device(self) -> Device:
        """The calling thread's current device."""
        return self._currents.device()

    def stream(self, device: int | Device | None = None) -> SimStream:
        """A new stream; ``with`` makes it and its device current for the thread."""
        return self._currents.new(self._device(device))

    def current_stream(self, device: int | Device | None = None) -> SimStream:
        """The calling thread's current stream of a device."""
        return self._currents.stream(self._device(device))

    def set_stream(self, stream: SimStream) -> None:
        """Make a stream and its device current for the calling thread, from now on."""
        self._currents.make_current({stream.device: stream}, stream.device)

    def default_stream(self, device: int | Device | None = None) -> SimStream:
        """The default stream of a device, the same for all threads."""
        return self._currents.default(self._device(device))

    def capture(
        self, device: int | Device | None = None
    ) -> AbstractContextManager[SimStream]:
        """Capture work as ``torch.cuda.graph`` does, on a new stream.

        The stream is current inside, for the calling thread. What any thread queues on
        it meanwhile is not run, and never will be: there is no replay. An event on it,
        a wait on it or for it, and a host that waits for it or for everything break
        the capture.

        Yields:
            The stream; after the block it is one as others are.

        Raises:
            BrokenCaptureError: At the end, when something broke the capture and the
                block raised nothing else.
        """
        return self._capture(device, call_site())

    @contextmanager
    def _capture(self, device: int | Device | None, site: str) -> Iterator[SimStream]:
        with self.stream(device) as stream:
            self._machine.begin_capture(stream.queue, site)
            try:
                yield stream
            except BaseException:
                self._machine.end_capture(stream.queue)
                raise
            broken_by = self._machine.end_capture(stream.queue)
        if broken_by is not None:
            raise broken_by

    def reserved_nbytes(self, device: int | Device | None = None) -> int:
        """Bytes of a device in arrays and in memory that is kept for the next ones."""
        return self._machine.reserved_nbytes(self._device(device))

    def event(self) -> SimEvent:
        """A new event, not recorded yet."""
        return SimEvent(self._machine, self._currents)

    def synchronize(self) -> None:
        """Have the host wait for all streams of all devices."""
        self._machine.synchronize_all()

    def held(self) -> AbstractContextManager[None]:
        """Hold up the devices: inside the ``with``, whoever asks hears that they work.

        Every `query` says no, unless the host waited for that very point, as if a long
        kernel ran on each stream; `synchronize`, `tolist` and the like still end. What
        waits for a device by asking, as a call with arrays does before it leaves, stays
        behind until the block ends.

        Raises:
            ValueError: When they are held up already.
        """
        return self._machine.held()

    # ---- what was found -------------------------------------------------------------

    def take_races(self) -> list[RaceError]:
        """The races found so far and not taken before, in the order of finding.

        A race that nobody takes is raised at the end of the ``with`` block, also when
        it was raised before and something caught it.
        """
        return self._machine.take_races()

    def _device(self, device: int | Device | None) -> Device:
        if device is None:
            return self._currents.device()
        if isinstance(device, Device):
            return device
        return self._machine.device(device)


@contextmanager
def simulate(
    devices: int = 1,
    *,
    seed: int = 0,
    used: Iterable[int] = (),
    memory_nbytes: int | None = None,
    raise_at_once: bool = True,
) -> Iterator[Simulation]:
    """Let futures work on simulated devices ``sim:0``, ``sim:1`` ... and find races.

    What was registered or put off inside (extractors, callbacks) stays inside. Streams
    that the library makes for callbacks are never used twice. Process-wide: two
    simulations cannot run at the same time.

    Args:
        devices: How many devices there are.
        seed: Decides when work runs, as far as no event says so. Whether a race is
            found does not depend on it, wrong values do.
        used: Indices of devices that count as used from the start; others do from
            their first array, stream or event on.
        memory_nbytes: How much memory each device has; by default there is no limit.
        raise_at_once: Raise a race where its second operation is queued, which is then
            not queued. If False, the operation is queued, so that the wrong value can
            be seen, and the race is only recorded.

    Yields:
        The simulation.

    Raises:
        RaceError: At the end, the first of the races that nobody took, with a note for
            each other one; when the block raises something else, that gets the notes.
        ValueError: When a simulation runs already, or there is no such device.
    """
    if devices < 1:
        raise ValueError(f"a simulation needs a device, got devices={devices}")
    machine = Machine(devices, seed, memory_nbytes, raises_at_once=raise_at_once)
    currents = CurrentStreams(machine)
    for index in used:
        machine.touch(machine.device(index))
    with (
        installed_seam(DEVICE_TYPE, SimSeam(machine, currents)),
        isolated_registry(),
        _callbacks.isolated_runtime() as runtime,
    ):
        runtime.streams = FreshStreams()
        _sim_wire.register_types()
        try:
            yield Simulation(machine, currents)
        except BaseException as error:
            machine.close()
            _add_notes(error, machine.take_races())
            raise
        machine.close()
    races = machine.take_races()
    if races:
        _add_notes(races[0], races)
        raise races[0]


def _add_notes(error: BaseException, races: Iterable[RaceError]) -> None:
    for race in races:
        # A race that came from another agent is not the object that was found.
        if str(race) != str(error):
            error.add_note(f"the simulation also found: {race}")
