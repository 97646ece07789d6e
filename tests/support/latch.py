"""A kernel that holds up a stream until the host says so: races made certain."""

from __future__ import annotations

import functools
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE = r"""
extern "C" __global__ void hold(volatile int* flag, long long cycles) {
    long long start = clock64();
    while (*flag == 0 && clock64() - start < cycles) { }
}
"""
# A latch that nobody opens ends by itself after some 10 s, so that no test hangs.
_MAX_CYCLES = 20_000_000_000
_POLLS = 200
_POLL_S = 1e-4


@functools.cache
def _kernel() -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, "hold")


class Latch:
    """Holds up streams from `hold` on, until `open`."""

    _are_made_open = False

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        if self._are_made_open:
            self.open()

    @classmethod
    @contextmanager
    def made_open(cls) -> Iterator[None]:
        """Let latches hold nothing, to warm up.

        A kernel that runs for the first time is loaded first, and loading waits for all
        that runs on the device: for a latch, too.
        """
        cls._are_made_open = True
        try:
            yield
        finally:
            cls._are_made_open = False

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Queue the kernel on a stream."""
        import cupy

        with torch.cuda.device(stream.device), warnings.catch_warnings():
            # Its successor wants a protocol that external torch streams do not speak.
            warnings.simplefilter("ignore", DeprecationWarning)
            with cupy.cuda.ExternalStream(stream.cuda_stream):
                _kernel()((1,), (1,), (self._flag.data_ptr(), _MAX_CYCLES))

    def open(self) -> None:
        """Let all held streams go on."""
        self._flag[0] = 1

    def open_after_chance(self, *streams: torch.cuda.Stream) -> None:
        """Open, but first give the streams a chance to run ahead if nothing holds them.

        A stream that wrongly does not wait is idle within microseconds, and then has
        read old values; one that waits stays busy, and costs 20 ms.
        """
        pause = threading.Event()
        for _ in range(_POLLS):
            if all(stream.query() for stream in streams):
                break
            pause.wait(_POLL_S)
        self.open()
