"""The host as a stream: an order for callbacks that work on host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from rpcfut._devices import CPU, Device, parse_device
from rpcfut._streams import seam_of

if TYPE_CHECKING:
    import torch


class HostStream:
    """The host's stream. There is one: callbacks given it run one at a time."""

    __slots__ = ()

    device = CPU

    def __repr__(self) -> str:
        return "<rpcfut host stream>"


HOST_STREAM = HostStream()
Streams: TypeAlias = Any
"""A stream of any kind of device, or a list or tuple of them, one per device."""


def stream(device: str | int | torch.device) -> Any:
    """A stream for `Future.then(..., stream=...)`.

    Args:
        device: ``"cpu"`` for the host's stream, of which there is one; else a device
            with an index, on which a new non-blocking stream is made. On CUDA that
            takes the extra ``cuda12`` or ``cuda13``; without it the stream is one of
            torch's pool, which others may share.

    Returns:
        The stream: for CUDA an ordinary ``torch.cuda.Stream``, to be used with
        ``torch.cuda.stream(...)`` as well. It does not become current.

    Raises:
        ValueError: When the device has no index.
        LookupError: When nothing is known about devices of that type.
        RuntimeError: When the driver refuses.
    """
    parsed = parse_device(device)
    return HOST_STREAM if parsed == CPU else seam_of(parsed).create_stream(parsed)


def streams_by_device(streams: Streams) -> dict[Device, Any]:
    """Sort the streams that a user gave by device.

    Raises:
        TypeError: When something given is no stream.
        ValueError: When two streams are on one device.
    """
    given = streams if isinstance(streams, (list, tuple)) else (streams,)
    found: dict[Device, Any] = {}
    for one in given:
        try:
            # An array has a device, too.
            device = parse_device(one.device if not hasattr(one, "shape") else "")
        except (AttributeError, ValueError):
            raise TypeError(
                f"not a stream: {one!r}; give a torch.cuda.Stream or what "
                "rpcfut.stream('cuda:0') or rpcfut.stream('cpu') returns"
            ) from None
        if device in found:
            raise ValueError(f"two streams on {device}: {found[device]!r} and {one!r}")
        found[device] = one
    return found
