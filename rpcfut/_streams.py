"""Streams, events and who waits for whom; the seam to a kind of device.

Theory of operation. A *mark* is an event on one device, recorded behind work that a
value depends on. Three things happen to marks, and nothing else in the library touches
streams:

* `record_marks` makes them, on the current streams of the devices that hold a value's
  memory, on the thread that completes the value (STR-1);
* `wait_marks` makes the current streams of the calling frame wait for them and tells
  the allocator who reads (STR-2); no host thread waits, except for pinned host memory,
  whose readers run on the host;
* `enter_scope` does both for a callback: own streams are made current, wait for the
  marks, and `Scope.leave` records what the callback launched (STR-3, STR-5).

A kind of device takes part by a `Seam`. CUDA is one, a simulated device another; the
host needs none.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import cuda as torch_cuda

from rpcfut._cuda import CudaSeam, relax_this_thread
from rpcfut._pool import current_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rpcfut._devices import Device
    from rpcfut._memory import DataRef
    from rpcfut._seam import Event, Seam


class Mark(NamedTuple):
    """An event that a value depends on."""

    seam: Seam
    device: Device
    event: Event


_CUDA: Final = CudaSeam()
_NEW: Final[Any] = tuple.__new__  # Mark() takes twice as long
_seams: dict[str, Seam] = {"cuda": _CUDA}
_seams_lock = threading.Lock()


@contextmanager
def installed_seam(device_type: str, seam: Seam) -> Iterator[None]:
    """Let devices of `device_type` take part, for the duration of the context.

    Raises:
        ValueError: When that type already has a seam.
    """
    install_seam(device_type, seam)
    try:
        yield
    finally:
        with _seams_lock:
            del _seams[device_type]


def install_seam(device_type: str, seam: Seam) -> None:
    """Let devices of `device_type` take part from now on.

    Raises:
        ValueError: When that type already has a seam.
    """
    with _seams_lock:
        if device_type in _seams:
            raise ValueError(f"device type {device_type!r} already has a seam")
        _seams[device_type] = seam


def seam_of(device: Device) -> Seam:
    """The seam of a device.

    Raises:
        LookupError: When no seam is installed for its type.
    """
    seam = _seams.get(device.type)
    if seam is None:
        raise LookupError(
            f"no seam for device {str(device)!r}: known types are {sorted(_seams)}"
        )
    return seam


def used_devices() -> Sequence[Device]:
    """All devices, of any type, that this process has a context on."""
    if len(_seams) == 1:  # asked four times and more for each callback
        return _CUDA.used_devices if torch_cuda._initialized else ()  # noqa: SLF001 - as above
    found: Sequence[Device] = ()
    for seam in tuple(_seams.values()):
        devices = seam.used_devices
        if devices:
            found = (*found, *devices) if found else devices
    return found


def device_counts() -> dict[str, int]:
    """How many devices of each type this process sees, used or not."""
    return {kind: seam.device_count for kind, seam in tuple(_seams.items())}


def current_device() -> Device | None:
    """The calling thread's current device, of the first kind that has such a thing."""
    for seam in tuple(_seams.values()):
        if seam.used_devices:
            return seam.current_device
    return None


def _devices_of(refs: Iterable[DataRef]) -> dict[Device, None]:
    """The devices whose streams may have written the memory of `refs`.

    The host is listed only for pinned memory; its filler cannot be seen, so it counts
    as memory of every used device (STR-2).
    """
    found: dict[Device, None] = {}
    for ref in refs:
        if ref.device.type != "cpu":
            found[ref.device] = None
        else:
            found.update(dict.fromkeys(used_devices()))
    return found


def record_streams(streams: Iterable[tuple[Device, Any]]) -> tuple[Mark, ...]:
    """Record one event on each of the given streams that has work queued."""
    marks = []
    for device, stream in streams:
        seam = seam_of(device)
        event = seam.record(stream)
        if event is not None:
            marks.append(_NEW(Mark, (seam, device, event)))
    return tuple(marks)


def record_current(devices: Iterable[Device]) -> tuple[Mark, ...]:
    """Record one event on the calling thread's current stream of each device."""
    return record_streams([(d, seam_of(d).current_stream(d)) for d in devices])


def record_marks(refs: Iterable[DataRef]) -> tuple[Mark, ...]:
    """Record the marks of a value, on the thread that completes it (STR-1)."""
    return record_current(_devices_of(refs)) if refs else ()


def record_in_use(refs: Iterable[DataRef]) -> tuple[Mark, ...]:
    """Marks on the current streams of all used devices and of the memory `refs`."""
    used = used_devices()
    if not used and not refs:
        return ()
    return record_current({**dict.fromkeys(used), **_devices_of(refs)})


def wait_marks(
    marks: Iterable[Mark], refs: Iterable[DataRef], *, on_host: bool = True
) -> None:
    """Make the calling frame's current streams wait for marks (STR-2).

    Args:
        marks: What to wait for.
        refs: The memory that will be read; the allocator is told.
        on_host: Whether the calling host thread may wait for pinned host memory. It
            does so with the GIL released, and for nothing else.
    """
    has_pinned = False
    for ref in refs:
        if ref.device.type == "cpu":
            has_pinned = True
        else:
            seam = seam_of(ref.device)
            seam.keep_alive(ref, seam.current_stream(ref.device))
    for mark in marks:
        mark.seam.wait(mark.seam.current_stream(mark.device), mark.event)
        if has_pinned and on_host:
            mark.event.synchronize()


def pinned_marks(marks: Sequence[Mark], refs: Iterable[DataRef]) -> Sequence[Mark]:
    """The marks that a reader on the host has to wait for: those of pinned memory.

    Only those that have not passed yet; none if no memory is pinned.
    """
    if marks:
        for ref in refs:
            if ref.device.type == "cpu":
                return [mark for mark in marks if not mark.event.query()]
    return ()


class Scope:
    """Streams of our own that are current for a while; owner thread only.

    Args:
        lease: Gives a pool stream of a device and what returns it.
    """

    __slots__ = ("_given", "_lease", "_leases", "_undo")

    def __init__(
        self, lease: Callable[[Device], tuple[Any, Callable[[], None]]]
    ) -> None:
        self._lease = lease
        self._given: dict[Device, Any] = {}
        self._leases: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []

    def add(
        self,
        devices: Iterable[Device],
        *,
        streams: Mapping[Device, Any] | None = None,
        current: Device | None = None,
    ) -> None:
        """Give more devices a stream of their own; those that have one keep it.

        Args:
            devices: The devices.
            streams: Streams to use instead of a pool stream, per device.
            current: The device to make current, if it is among them.
        """
        added: dict[str, dict[Device, Any]] = {}
        for device in (*(streams or ()), *devices):
            if device in self._given:
                continue
            if streams is not None and device in streams:
                stream = streams[device]
            else:
                stream, release = self._lease(device)
                self._leases.append(release)
            self._given[device] = stream
            added.setdefault(device.type, {})[device] = stream
        for device_type, new in added.items():
            chosen = current if current in new else None
            self._undo.append(_seams[device_type].make_current(new, chosen))

    def follow(self, marks: Sequence[Mark]) -> None:
        """Have all that is queued inside from now on come after `marks`."""
        if marks:
            self.add(mark.device for mark in marks)
            wait_marks(marks, ())

    def record(self, refs: Iterable[DataRef]) -> tuple[Mark, ...]:
        """The marks of what was made inside, each stream once.

        On every stream that was given, on the current stream of a device first used
        inside (STR-5), and on the current streams of the memory `refs` (STR-4), which
        are the given ones unless other streams were made current inside. Call it before
        `leave`: a stream that is not current any more may be handed to somebody else.
        """
        if not (self._given or refs or used_devices()):
            return ()
        streams = list(self._given.items())
        for device in (*used_devices(), *_devices_of(refs)):
            pair = (device, seam_of(device).current_stream(device))
            if pair not in streams:
                streams.append(pair)
        return record_streams(streams)

    def leave(self) -> None:
        """Restore streams and current device, and give the pool streams back."""
        try:
            for undo in reversed(self._undo):
                undo()
        finally:
            for release in self._leases:
                release()


def enter_scope(
    lease: Callable[[Device], tuple[Any, Callable[[], None]]],
    *,
    marks: Sequence[Mark] = (),
    refs: Sequence[DataRef] = (),
    current: Device | None = None,
    devices: Iterable[Device] = (),
    streams: Mapping[Device, Any] | None = None,
) -> Scope:
    """Make own streams current on every device in play, behind `marks` (STR-3).

    Args:
        lease: Gives a pool stream of a device and what returns it.
        marks: What the streams wait for.
        refs: Memory that the callback may read; the allocator is told. The first device
            in it becomes the current one.
        current: The device to make current if there is none.
        devices: Devices in play besides those of the marks and the used ones.
        streams: Streams to use instead of a pool stream, per device.

    Returns:
        The scope, to be left on the same thread.
    """
    scope = Scope(lease)
    if not (marks or refs or devices or streams or used_devices()):
        return scope  # as everywhere without a GPU
    in_play = (*[mark.device for mark in marks], *devices, *used_devices())
    for ref in refs:
        if ref.device.type != "cpu":
            current = ref.device
            break
    if current_pool() is not None:
        relax_this_thread()
    try:
        scope.add(in_play, streams=streams, current=current)
        wait_marks(marks, refs)
    except BaseException:
        scope.leave()  # or this thread would keep streams that are not its own
        raise
    return scope
