"""The fixed part of every message.

Theory of operation: a message is a list of frames. The first starts with a header of
fixed width, the body follows directly; further frames are buffers. The header decodes
on its own, whatever the body is (RPC-3)::

    offset  0   2  3    4    8    16          24          32        40      44     52
            +---+--+----+----+----+-----------+-----------+---------+-------+------+----
            |RF |v |kind|rank|id  | sender    | target    |remaining|buffers|number|body
            +---+--+----+----+----+-----------+-----------+---------+-------+------+----
             magic       u32  u64  incarnation incarnation f64       u32     u64

Little-endian. ``remaining`` is the time that is left for the call, in seconds; -1
stands for no deadline. It is not a point in time, because clocks of two hosts differ.
``number`` grows from message to message of one sender to one receiver, so that a
doubled or overtaken one is known (RPC-5).

The body of a BATCH is a sequence of whole messages of one frame each, none of them a
BATCH, and each behind its length as u32.

The header is a tuple, not a dataclass: one is made for every message, and a frozen
dataclass of seven fields takes several times as long to make.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rpcfut_transport._errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer

_MAGIC = b"RF"
_VERSION = 2
_LAYOUT = struct.Struct("<2sBBIQQQdIQ")
_LENGTH = struct.Struct("<I")
_NO_DEADLINE = -1.0
_pack = _LAYOUT.pack
_unpack_from = _LAYOUT.unpack_from
_new: Final[Any] = tuple.__new__  # Header() takes twice as long
_RANK = struct.Struct("<I")

# Where a link finds what it has to look at, without decoding the rest.
KIND_AT = 3
SENDER_RANK = slice(4, 8)

HEADER_NBYTES = _LAYOUT.size
MAX_REMAINING_S = 1e9  # 31 years; more would overflow whoever polls with it
MAX_BUFFERS = 1 << 20


class Kind(IntEnum):
    """What a message is."""

    CALL = 1
    RESULT = 2
    ERROR = 3
    CANCEL = 4
    READY = 5  # the sender is ready to leave
    GOODBYE = 6  # the sender has left
    WAKE = 7  # a link to itself; never leaves the process
    ASK = 8  # where is this call of mine?
    TELL = 9  # there, or not here: a byte, and words
    ACK = 10  # how much of the receiver's messages was taken, see `_flow`
    BATCH = 11  # the body holds small messages, each behind its length
    JOIN = 12  # the sender, whom nobody need know yet, joins; the body says who it is
    WELCOME = 13  # to who joined: it is known now; the body says why not, if it is not
    REOPENED = 14  # the sender's way to you broke, and is open again
    LOST = 15  # the sender takes you for lost, and hears you no more


class Header(NamedTuple):
    """The fixed part of a message.

    Args:
        kind: What the message is.
        call_id: The call that it belongs to, given by the caller; 0 if none.
        sender_rank: Who sent it.
        sender_incarnation: Which life of the sender.
        target_incarnation: Which life of the receiver it is meant for.
        remaining_s: Seconds that are left for the call; None for no deadline.
        buffer_count: How many frames follow the first.
        number: Which message to the receiver this is, from 1, with gaps; 0 for one that
            may come twice.
    """

    kind: Kind
    call_id: int
    sender_rank: int
    sender_incarnation: int
    target_incarnation: int
    remaining_s: float | None
    buffer_count: int
    number: int = 0


GUEST_KINDS = frozenset({Kind.JOIN})  # what a sender of no rank yet may say

_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}


def pack_rank(rank: int) -> bytes:
    """Write a rank as it stands in a header.

    Raises:
        LocalProtocolError: When it does not fit.
    """
    try:
        return _RANK.pack(rank)
    except struct.error as error:
        raise LocalProtocolError(f"no valid rank: {rank!r}: {error}") from error


# A header, or the plain tuple of its fields: it is made for every message.
Fields = tuple[Kind, int, int, int, int, float | None, int, int]


def encode_header(header: Header | Fields) -> bytes:
    """Write a header.

    A remaining time below 0 is sent as 0, one above `MAX_REMAINING_S` as that.

    Any thread; does not block.

    Raises:
        LocalProtocolError: When a field does not fit its place.
    """
    kind, call_id, rank, sender, target, remaining_s, buffer_count, number = header
    if remaining_s is None:
        remaining_s = _NO_DEADLINE
    elif math.isnan(remaining_s):
        raise LocalProtocolError(f"remaining_s must be a number of seconds: {header!r}")
    else:
        remaining_s = min(max(remaining_s, 0.0), MAX_REMAINING_S)
    if buffer_count > MAX_BUFFERS:
        raise LocalProtocolError(
            f"a message has at most {MAX_BUFFERS} buffers, got {buffer_count}"
        )
    try:
        return _pack(
            _MAGIC,
            _VERSION,
            kind,
            rank,
            call_id,
            sender,
            target,
            remaining_s,
            buffer_count,
            number,
        )
    except struct.error as error:
        raise LocalProtocolError(f"no valid header: {header!r}: {error}") from error


def decode_header(first_frame: Buffer) -> Header:
    """Read the header at the start of a message's first frame.

    Any thread; does not block. A remaining time above `MAX_REMAINING_S` is read as
    `MAX_REMAINING_S`.

    Args:
        first_frame: Header and body; the body is not looked at.

    Raises:
        RemoteProtocolError: When the bytes are no header of this version.
    """
    try:
        magic, version, code, rank, call_id, sender, target, time_s, count, number = (
            _unpack_from(first_frame)
        )
    except struct.error as error:
        raise RemoteProtocolError(
            f"a message starts with a header of {HEADER_NBYTES} bytes, "
            f"got a frame of {len(first_frame)}"
        ) from error
    if magic != _MAGIC or version != _VERSION:
        raise RemoteProtocolError(
            f"got magic {magic!r} and version {version}, "
            f"wanted {_MAGIC!r} and {_VERSION}: is the peer another release?"
        )
    kind = _KINDS.get(code)
    if kind is None:
        raise RemoteProtocolError(f"got kind {code}, wanted one of {list(_KINDS)}")
    if count > MAX_BUFFERS:
        raise RemoteProtocolError(
            f"got {count} as the number of buffers, wanted at most {MAX_BUFFERS}"
        )
    left_s = None if time_s == _NO_DEADLINE else _remaining_from_wire(time_s)
    fields = (kind, call_id, rank, sender, target, left_s, count, number)
    header: Header = _new(Header, fields)
    return header


def decode_message(frames: Sequence[Buffer]) -> tuple[Header, memoryview]:
    """Read the header of a whole message, and find its body.

    Any thread; does not block; copies nothing.

    Returns:
        The header, and the body as a view of the first frame.

    Raises:
        RemoteProtocolError: When the header is none, or counts other buffers.
    """
    first = frames[0]
    header = decode_header(first)
    if header.buffer_count != len(frames) - 1:
        raise RemoteProtocolError(
            f"the header announces {header.buffer_count} buffers, "
            f"the message has {len(frames) - 1}"
        )
    return header, memoryview(first)[HEADER_NBYTES:]


def encode_batch(header: bytes, messages: Sequence[bytes]) -> bytes:
    """Write messages of one frame each as one; the header says BATCH."""
    parts = [header]
    for message in messages:
        parts.append(_LENGTH.pack(len(message)))
        parts.append(message)
    return b"".join(parts)


def split_batch(body: memoryview) -> list[memoryview]:
    """Find the messages in the body of a BATCH; copies nothing.

    Raises:
        RemoteProtocolError: When the lengths do not add up.
    """
    messages: list[memoryview] = []
    start, end = 0, len(body)
    while start < end:
        if end - start < _LENGTH.size:
            raise RemoteProtocolError(f"a batch ends with {end - start} bytes too many")
        (nbytes,) = _LENGTH.unpack_from(body, start)
        start += _LENGTH.size
        if nbytes > end - start:
            raise RemoteProtocolError(
                f"a message of {nbytes} bytes in a batch with {end - start} left"
            )
        messages.append(body[start : start + nbytes])
        start += nbytes
    return messages


def _remaining_from_wire(remaining_s: float) -> float:
    if remaining_s >= 0.0:
        return min(remaining_s, MAX_REMAINING_S)
    raise RemoteProtocolError(
        f"got {remaining_s!r} as the remaining time, "
        f"wanted seconds from 0 on, or {_NO_DEADLINE!r} for no deadline"
    )


WAKE_FRAME = encode_header(Header(Kind.WAKE, 0, 0, 0, 0, None, 0))
