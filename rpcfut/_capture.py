"""Streams that are being captured into a CUDA graph (STR-14).

Recording an event on such a stream, or making it wait for one, would break the capture
or become part of the graph. So whatever would do that on a user's thread refuses first,
before any CUDA call. Threads of the library take no part in a capture of the user's:
they run in relaxed mode, in which what they do does not break it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from rpcfut._errors import CaptureError
from rpcfut_transport.planes._device import relax_capture_mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rpcfut._devices import Device

_is_capturing: Any = getattr(_C, "_cuda_isCurrentStreamCapturing", None)
_exchange_device: Any = getattr(_C, "_cuda_exchangeDevice", None)


class _Thread(threading.local):
    is_relaxed = False


_thread = _Thread()


def refuse_capture(devices: Iterable[Device], act: str) -> None:
    """Refuse to go on if a current stream of the calling thread is being captured.

    Args:
        devices: The devices to look at, those with a context.
        act: What would be done, for the message.

    Raises:
        CaptureError: When one is; nothing was done.
    """
    for device in devices:
        if device.type == "cuda" and _captures(device.index):
            raise CaptureError(
                f"{act} while {device}'s current stream is being captured into a CUDA "
                "graph: the events of futures cannot be part of a graph; do it before "
                "or after the capture"
            )


def relax_this_thread() -> None:
    """Keep what this thread does out of captures of other threads. Once is enough."""
    if not _thread.is_relaxed and torch.cuda.is_initialized():
        relax_capture_mode()
        _thread.is_relaxed = True


def _captures(index: int) -> bool:
    before = _exchange_device(index)
    try:
        return bool(_is_capturing())
    finally:
        if before != index:
            _exchange_device(before)
