"""The seam to CUDA, by torch.

Events are torch's, so that torch's sanitizer sees them; streams are made by the driver
bindings where these are installed, else they are torch's.

Theory of operation. A callback passes here a dozen times, so what torch's own functions
do besides the call itself (0.1 us) is left out: they look up the device (0.2 us), make
a new object for a known stream (1.8 us) or enter a context manager (9 us). A stream is
known by torch's triple of stream id, device index and device type.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from rpcfut._devices import Device
from rpcfut._holding import Holding
from rpcfut_transport.planes._device import create_stream, relax_capture_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rpcfut._memory import DataRef
    from rpcfut._seam import Event
    from rpcfut_transport import Buffer

# What torch.cuda's functions of these names call; torch has no stub for them.
_get_device: Any = getattr(_C, "_cuda_getDevice", None)
_set_device: Any = getattr(_C, "_cuda_setDevice", None)
_get_current_stream: Any = getattr(_C, "_cuda_getCurrentStream", None)
_set_stream: Any = getattr(_C, "_cuda_setStream", None)
_has_context: Any = getattr(_C, "_cuda_hasPrimaryContext", None)

_is_capturing: Any = getattr(_C, "_cuda_isCurrentStreamCapturing", None)
_exchange_device: Any = getattr(_C, "_cuda_exchangeDevice", None)

_MAX_KNOWN = 1024


class _Thread(threading.local):
    is_relaxed = False


_thread = _Thread()


def relax_this_thread() -> None:
    """Keep what this thread does out of captures of other threads (STR-14).

    For threads of the library, which take no part in a capture of the user's. Once is
    enough.
    """
    if not _thread.is_relaxed and torch.cuda.is_initialized():
        relax_capture_mode()
        _thread.is_relaxed = True


class CudaSeam:
    """Streams and events of CUDA devices. Any thread; never waits for a GPU."""

    # An idle stream needs no event. Tools that derive the order from events alone, as
    # torch's sanitizer does, cannot know that, and want them all.
    skips_idle_streams = True

    def __init__(self) -> None:
        self._holding = Holding(self.record)
        self._used: tuple[Device, ...] = ()
        self._count = 0  # of all devices; fixed once CUDA is in use
        self._known: dict[tuple[int, int, int], torch.cuda.Stream] = {}

    @property
    def used_devices(self) -> Sequence[Device]:
        """Devices whose primary context exists; asking makes none (STR-12)."""
        if not torch.cuda.is_initialized():
            return ()
        if self._count == 0:
            self._count = torch.cuda.device_count()
        if len(self._used) < self._count:  # contexts come, and do not go
            used = [Device("cuda", i) for i in range(self._count) if _has_context(i)]
            if len(used) > len(self._used):
                self._used = tuple(used)
        return self._used

    def current_stream(self, device: Device) -> torch.cuda.Stream:
        """The calling thread's current stream on `device`."""
        key = _get_current_stream(device.index)
        stream = self._known.get(key)
        return stream if stream is not None else self._stream_of(key)

    def is_capturing(self, device: Device) -> bool:
        """Whether the calling thread's current stream on `device` is being captured."""
        before = _exchange_device(device.index)
        try:
            return bool(_is_capturing())
        finally:
            if before != device.index:
                _exchange_device(before)

    def _stream_of(self, key: tuple[int, int, int]) -> torch.cuda.Stream:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()  # somebody makes streams in a loop
        stream = torch.cuda.Stream(
            stream_id=key[0], device_index=key[1], device_type=key[2]
        )
        self._known[key] = stream
        return stream

    @property
    def current_device(self) -> Device:
        """The calling thread's current device."""
        return Device("cuda", _get_device())

    def create_stream(self, device: Device) -> torch.cuda.Stream:
        """A non-blocking stream of our own; without the bindings, one of torch's."""
        with torch.cuda.device(device.index):
            handle = create_stream()
            if handle is None:
                return torch.cuda.Stream(device.index)
        return torch.cuda.ExternalStream(handle, device=device.index)

    def make_current(
        self, streams: Mapping[Device, Any], device: Device | None
    ) -> Callable[[], None]:
        """Make `streams` current and, if given, `device`; returns what undoes it."""
        self._holding.sweep()
        old_device = _get_device()
        old = [_get_current_stream(d.index) for d in streams]
        new = [(s.stream_id, s.device_index, s.device_type) for s in streams.values()]
        _set(new, old_device if device is None else device.index)
        return functools.partial(_set, old, old_device)

    def record(self, stream: torch.cuda.Stream) -> Event | None:
        """An event at the end of `stream`, or None if nothing is queued there."""
        if self.skips_idle_streams and stream.query():
            return None
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: Event) -> None:
        """Have work queued on `stream` from now on wait for `event`."""
        assert isinstance(event, torch.cuda.Event)
        event.wait(stream)

    def keep_alive(self, ref: DataRef, stream: torch.cuda.Stream) -> None:
        """Tell torch's caching allocator that `stream` reads the memory of `ref`.

        Memory of another allocator, CuPy's for one, is held here until the stream is
        through: torch's `record_stream` does nothing for it, in silence.
        """
        self._holding.sweep()
        owner = ref.owner
        if isinstance(owner, torch.Tensor):
            try:
                owner.record_stream(stream)
            except NotImplementedError:  # of nested tensors, for one
                owner = owner.untyped_storage()
        if isinstance(owner, torch.UntypedStorage):
            whole = torch.empty(0, dtype=torch.uint8, device=owner.device).set_(owner)
            whole.record_stream(stream)
        elif not isinstance(owner, torch.Tensor):
            self._holding.hold(owner, stream)

    @property
    def device_count(self) -> int:
        """How many CUDA devices torch sees."""
        return torch.cuda.device_count()

    def copy_to_host(self, source: torch.Tensor) -> Buffer:
        """Queue a copy of a flat uint8 tensor to pinned memory; see `HostCopies`."""
        pinned = torch.empty(source.nbytes, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(source, non_blocking=True)
        return _view(pinned)

    def copy_from_host(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Queue a copy of a host tensor to a device; see `HostCopies`."""
        # From pageable memory this returns once the driver has its own copy of the
        # bytes.
        return tensor.to(str(device), non_blocking=True)


def _view(pinned: torch.Tensor) -> memoryview:
    """The bytes of a host tensor as a buffer that keeps the tensor alive."""
    array = (ctypes.c_char * pinned.numel()).from_address(pinned.data_ptr())
    array.tensor = pinned  # type: ignore[attr-defined]  # what keeps it alive
    return memoryview(array).cast("B")


def _set(keys: Iterable[tuple[int, int, int]], device: int) -> None:
    # Setting a stream makes its device current too, so the device comes last.
    for stream_id, device_index, device_type in keys:
        _set_stream(
            stream_id=stream_id, device_index=device_index, device_type=device_type
        )
    if _get_device() != device:
        _set_device(device)
