"""The seam: what the library asks of a kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from rpcfut._devices import Device
    from rpcfut._memory import DataRef
    from rpcfut_transport import Buffer


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether everything before the event has run. Does not block."""
        ...

    def synchronize(self) -> None:
        """Block the calling host thread until the event has passed; GIL released."""
        ...


class HostCopies(Protocol):
    """How the elements of arrays get to the host and back. Any thread calls it.

    Both copies are queued on the calling thread's current stream of the device; neither
    method waits for the device.
    """

    @property
    def device_count(self) -> int:
        """How many devices this process sees. Must not create a context."""
        ...

    def copy_to_host(self, source: Any) -> Buffer:
        """Queue a copy of a dense array's elements to host memory of ours.

        Args:
            source: The array; has at least one element.

        Returns:
            The host memory; complete once an event recorded behind the copy has passed.
        """
        ...

    def copy_from_host(self, tensor: torch.Tensor, device: Device) -> Any:
        """Make an array on a device of a dense host tensor that nobody writes to."""
        ...


class Seam(HostCopies, Protocol):
    """What one kind of device must be able to do. Any thread calls it.

    A stream is whatever `current_stream` and `create_stream` return; it is only handed
    back to the same seam. No method waits for the device.
    """

    @property
    def used_devices(self) -> Sequence[Device]:
        """Devices with a live context in this process. Must not create one."""
        ...

    def current_stream(self, device: Device) -> Any:
        """The calling thread's current stream on `device`."""
        ...

    @property
    def current_device(self) -> Device | None:
        """The calling thread's current device; None if this kind has no such thing."""
        ...

    def is_capturing(self, device: Device) -> bool:
        """Whether that stream is being captured into a graph; breaks no capture."""
        ...

    def create_stream(self, device: Device) -> Any:
        """A new stream that nobody else uses."""
        ...

    def make_current(
        self, streams: Mapping[Device, Any], device: Device | None
    ) -> Callable[[], None]:
        """Make `streams` current, and `device` if given; returns what undoes it."""
        ...

    def record(self, stream: Any) -> Event | None:
        """An event at the end of `stream`, or None if nothing is queued there."""
        ...

    def wait(self, stream: Any, event: Event) -> None:
        """Have work queued on `stream` from now on wait for `event`."""
        ...

    def keep_alive(self, ref: DataRef, stream: Any) -> None:
        """Tell the allocator that `stream` reads the memory of `ref`."""
        ...
