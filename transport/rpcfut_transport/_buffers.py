"""What a frame may be.

Lifetimes: a frame of fewer than `KEEP_ALIVE_MIN_NBYTES` bytes is copied when it is
sent. A larger one is kept alive and sent from where it lies, so its sender must not
write to it again; it hands over a buffer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rpcfut_transport._errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

KEEP_ALIVE_MIN_NBYTES = 64 * 1024


def require_frames(frames: Sequence[Buffer]) -> None:
    """Check that frames can be sent, before the first of them is.

    Any thread; does not block.

    Raises:
        LocalProtocolError: When there is no frame, or one is no contiguous buffer.
    """
    if not frames:
        raise LocalProtocolError("a message needs at least one frame, got none")
    for index, frame in enumerate(frames):
        if isinstance(frame, (bytes, bytearray)):
            continue
        if not isinstance(frame, memoryview):
            raise LocalProtocolError(
                f"frame {index} is a {type(frame).__qualname__!r}; "
                "wanted bytes, bytearray or memoryview"
            )
        if not frame.c_contiguous:
            raise LocalProtocolError(
                f"frame {index} is a memoryview with strides {frame.strides!r}; "
                "wanted a contiguous one: copy it first"
            )
