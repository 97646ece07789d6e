"""Streams that are being captured into a CUDA graph (STR-14).

Recording an event on such a stream, or making it wait for one, would break the capture
or become part of the graph. So whatever would do that on a user's thread refuses first,
before any call to the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcfut._errors import CaptureError
from rpcfut._streams import seam_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rpcfut._devices import Device


def refuse_capture(devices: Iterable[Device], act: str) -> None:
    """Refuse to go on if a current stream of the calling thread is being captured.

    Args:
        devices: The devices to look at, those with a context.
        act: What would be done, for the message.

    Raises:
        CaptureError: When one is; nothing was done.
    """
    for device in devices:
        if seam_of(device).is_capturing(device):
            raise CaptureError(
                f"{act} while {device}'s current stream is being captured into a CUDA "
                "graph: the events of futures cannot be part of a graph; do it before "
                "or after the capture"
            )
