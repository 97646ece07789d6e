"""The only module that talks to the CUDA driver by its Python bindings.

The bindings are an extra. Without them this module answers "no", and whoever asked
falls back to what torch offers.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

_log = logging.getLogger(__name__)


@cache
def _runtime() -> Any | None:
    """The CUDA runtime bindings, imported at first use: they cost 50 ms and a GPU."""
    try:
        from cuda.bindings import runtime  # noqa: PLC0415 - an extra, see above
    except ImportError:
        _log.info(
            "the CUDA bindings are not installed, so streams come from torch's pool, "
            "which all users of torch share; install rpcfut[cuda13] or rpcfut[cuda12]"
        )
        return None
    return runtime


def relax_capture_mode() -> bool:
    """Keep the calling thread's calls out of captures that other threads make.

    Returns:
        False without the bindings, and nothing was done.
    """
    runtime = _runtime()
    if runtime is None:
        return False
    relaxed = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
    error, _ = runtime.cudaThreadExchangeStreamCaptureMode(relaxed)
    return bool(error == runtime.cudaError_t.cudaSuccess)


def create_stream() -> int | None:
    """Make a non-blocking stream on the device that is current on this thread.

    Returns:
        The stream's handle, or None without the bindings. It is never destroyed: the
        caller keeps few and re-uses them.

    Raises:
        RuntimeError: When the driver refuses.
    """
    runtime = _runtime()
    if runtime is None:
        return None
    error, stream = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaStreamCreateWithFlags failed: {error!r}")
    return int(stream)
