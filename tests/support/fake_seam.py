"""A kind of device that does nothing but note what it is told.

Its devices are ``fake:0`` and ``fake:1``. Streams and events are plain objects; an
event has passed when the test says so. A `FakeArray` is a value on such a device.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcfut import DataRef, no_device_data, register_extractor
from rpcfut._callbacks import isolated_runtime
from rpcfut._devices import Device
from rpcfut._registry import isolated_registry
from rpcfut._streams import installed_seam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rpcfut._seam import Event

FAKE0, FAKE1 = Device("fake", 0), Device("fake", 1)
_numbers = itertools.count(1)


class FakeStream:
    """A stream: a device and a number."""

    def __init__(self, device: Device, name: str | None = None) -> None:
        self.device = device
        self.name = name or f"{device}/s{next(_numbers)}"

    def __repr__(self) -> str:
        return f"<{self.name}>"


class FakeEvent:
    """A point in a stream; has passed when the test sets `passed`."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.passed = threading.Event()
        self.host_waits = 0

    def __repr__(self) -> str:
        return f"<event on {self.stream.name}>"

    def query(self) -> bool:
        """Whether the test let it pass."""
        return self.passed.is_set()

    def synchronize(self) -> None:
        """Count; a fake stream is never behind."""
        self.host_waits += 1


class Entry(NamedTuple):
    """One thing that the seam was told."""

    verb: str
    stream: FakeStream
    what: Any
    thread: int


class _Currents(threading.local):
    """The calling thread's streams and device."""

    def __init__(self) -> None:
        self.streams: dict[Device, FakeStream] = {}
        self.device = FAKE0


class FakeSeam:
    """The recording fake of a seam. Any thread.

    Args:
        used: The devices in use; the test may change `used_devices` later.
    """

    def __init__(self, used: Sequence[Device] = (FAKE0, FAKE1)) -> None:
        self.used_devices: list[Device] = list(used)
        self.log: list[Entry] = []
        self.created: list[FakeStream] = []
        self.idle: set[FakeStream] = set()
        self.fails_in: str | None = None
        self._defaults = {d: FakeStream(d, f"{d}/default") for d in (FAKE0, FAKE1)}
        self._currents = _Currents()

    # ---- what the library calls -----------------------------------------------------

    def current_stream(self, device: Device) -> FakeStream:
        """The calling thread's stream, at first the device's default one."""
        return self._currents.streams.get(device, self._defaults[device])

    def is_capturing(self, device: Device) -> bool:
        """Never: the fake has no graphs."""
        return False

    def create_stream(self, device: Device) -> FakeStream:
        """A new stream."""
        self._maybe_fail("create_stream")
        self.created.append(FakeStream(device))
        return self.created[-1]

    def make_current(
        self, streams: Mapping[Device, Any], device: Device | None
    ) -> Callable[[], None]:
        """Make streams and device current on this thread."""
        self._maybe_fail("make_current")
        currents = self._currents
        before = dict(currents.streams), currents.device
        currents.streams.update(streams)
        if device is not None:
            currents.device = device

        def undo() -> None:
            currents.streams, currents.device = before

        return undo

    def record(self, stream: FakeStream) -> Event | None:
        """An event, unless the test said that nothing is queued there."""
        self._maybe_fail("record")
        if stream in self.idle:
            return None
        event = FakeEvent(stream)
        self._note("record", stream, event)
        return event

    def wait(self, stream: FakeStream, event: Event) -> None:
        """Note it."""
        self._maybe_fail("wait")
        self._note("wait", stream, event)

    def keep_alive(self, ref: DataRef, stream: FakeStream) -> None:
        """Note it."""
        self._note("keep_alive", stream, ref)

    # ---- what tests call ------------------------------------------------------------

    @property
    def current_device(self) -> Device:
        """The calling thread's current device."""
        return self._currents.device

    @contextmanager
    def on(self, *streams: FakeStream) -> Iterator[None]:
        """Make streams current on this thread, as a user does."""
        undo = self.make_current({s.device: s for s in streams}, None)
        try:
            yield
        finally:
            undo()

    def current(self) -> tuple[FakeStream, FakeStream]:
        """Both devices' current streams on this thread."""
        return self.current_stream(FAKE0), self.current_stream(FAKE1)

    def waited_for(self, stream: FakeStream) -> set[FakeStream]:
        """The streams on whose events `stream` was made to wait."""
        return {
            e.what.stream for e in self.log if e.verb == "wait" and e.stream is stream
        }

    def kept_alive_on(self, owner: object) -> list[FakeStream]:
        """The streams that read the memory of `owner`."""
        return [
            e.stream
            for e in self.log
            if e.verb == "keep_alive" and e.what.owner is owner
        ]

    def _note(self, verb: str, stream: FakeStream, what: Any) -> None:
        self.log.append(Entry(verb, stream, what, threading.get_ident()))

    def _maybe_fail(self, where: str) -> None:
        if self.fails_in == where:
            raise OSError(f"the device failed in {where}")


class FakeArray:
    """A value on some fake devices."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices


class Box:
    """A host value that holds anything."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _memory_of(array: FakeArray) -> list[DataRef]:
    return [DataRef(device, id(array), 8, array) for device in array.devices]


@contextmanager
def installed(seam: FakeSeam | None = None) -> Iterator[FakeSeam]:
    """Let fake devices take part, with threads and pool streams of their own."""
    seam = seam or FakeSeam()
    with isolated_registry(), installed_seam("fake", seam), isolated_runtime():
        register_extractor(FakeArray, _memory_of)
        no_device_data(Box)
        yield seam
