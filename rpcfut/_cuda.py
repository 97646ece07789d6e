"""The seam to CUDA, by torch.

Events are torch's, so that torch's sanitizer sees them; streams are made by the driver
bindings where these are installed, else they are torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rpcfut._devices import Device
from rpcfut_transport.planes._device import create_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rpcfut._memory import DataRef
    from rpcfut._seam import Event


class CudaSeam:
    """Streams and events of CUDA devices. Any thread; never waits for a GPU."""

    @property
    def used_devices(self) -> Sequence[Device]:
        """Devices whose primary context exists; asking makes none (STR-12)."""
        if not torch.cuda.is_initialized():
            return ()
        return [
            Device("cuda", i)
            for i in range(torch.cuda.device_count())
            if torch._C._cuda_hasPrimaryContext(i)  # type: ignore[attr-defined]  # noqa: SLF001
        ]

    def current_stream(self, device: Device) -> torch.cuda.Stream:
        """The calling thread's current stream on `device`."""
        return torch.cuda.current_stream(device.index)

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
        old_device = torch.cuda.current_device()
        old_streams = [torch.cuda.current_stream(d.index) for d in streams]
        _set(streams.values(), device.index if device is not None else old_device)
        return lambda: _set(old_streams, old_device)

    def record(self, stream: torch.cuda.Stream) -> Event | None:
        """An event at the end of `stream`, or None if nothing is queued there."""
        if stream.query():
            return None
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: Event) -> None:
        """Have work queued on `stream` from now on wait for `event`."""
        assert isinstance(event, torch.cuda.Event)
        stream.wait_event(event)

    def keep_alive(self, ref: DataRef, stream: torch.cuda.Stream) -> None:
        """Tell torch's caching allocator that `stream` reads the memory of `ref`.

        Memory of another allocator is not torch's to keep: the future holds its owner,
        and whoever drops both while the GPU still reads must synchronise.
        """
        owner = ref.owner
        if isinstance(owner, torch.UntypedStorage):
            owner = torch.empty(0, dtype=torch.uint8, device=owner.device).set_(owner)
        if isinstance(owner, torch.Tensor):
            owner.record_stream(stream)


def _set(streams: Any, device: int) -> None:
    # set_stream makes the stream's device current too, so the device comes last.
    for stream in streams:
        torch.cuda.set_stream(stream)
    torch.cuda.set_device(device)
