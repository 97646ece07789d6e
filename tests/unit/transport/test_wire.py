"""The header survives the wire, and nothing else passes for one (RPC-3)."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcfut_transport import LocalProtocolError, RemoteProtocolError
from rpcfut_transport._wire import (
    HEADER_NBYTES,
    KIND_AT,
    MAX_BUFFERS,
    MAX_REMAINING_S,
    SENDER_RANK,
    WAKE_FRAME,
    Header,
    Kind,
    decode_header,
    decode_message,
    encode_batch,
    encode_header,
    pack_rank,
    split_batch,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    call_id=U64,
    sender_rank=U32,
    sender_incarnation=U64,
    target_incarnation=U64,
    remaining_s=st.none() | st.floats(0, MAX_REMAINING_S),
    buffer_count=st.integers(0, MAX_BUFFERS),
    number=U64,
)
PLAIN = Header(Kind.CALL, 7, 1, 11, 12, 2.5, 0)
REMAINING_OFFSET = 32
COUNT_OFFSET = 40


def _with_remaining(remaining_s: float) -> bytes:
    frame = bytearray(encode_header(PLAIN))
    struct.pack_into("<d", frame, REMAINING_OFFSET, remaining_s)
    return bytes(frame)


@given(HEADERS, st.binary())
def test_a_header_comes_back_whatever_the_body_is(header: Header, body: bytes) -> None:
    """A body that makes no sense can still be answered with an error for its id."""
    frame = encode_header(header) + body
    assert len(encode_header(header)) == HEADER_NBYTES
    assert decode_header(frame) == header
    assert type(decode_header(frame).kind) is Kind


@given(st.binary(max_size=2 * HEADER_NBYTES))
def test_hostile_bytes_are_refused_or_read_but_nothing_else(frame: bytes) -> None:
    """No bytes make the decoder raise anything that a reader does not expect."""
    try:
        header = decode_header(frame)
    except RemoteProtocolError:
        return
    assert decode_header(encode_header(header)) == header


@given(st.data())
def test_a_header_with_bytes_changed_is_refused_or_in_range(data) -> None:
    """Bytes that look nearly right do not bring values that break their reader."""
    frame = bytearray(encode_header(data.draw(HEADERS)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, HEADER_NBYTES - 1))] = data.draw(
            st.integers(0, 255)
        )
    try:
        header = decode_header(frame)
    except RemoteProtocolError:
        return
    assert header.buffer_count <= MAX_BUFFERS
    assert header.remaining_s is None or 0 <= header.remaining_s <= MAX_REMAINING_S


@pytest.mark.parametrize("remaining_s", [math.nan, -math.inf, -0.5, -2.0])
def test_a_remaining_time_that_is_none_is_refused(remaining_s: float) -> None:
    """A peer cannot send a deadline that no clock reaches or that compares oddly."""
    with pytest.raises(RemoteProtocolError, match="remaining time"):
        decode_header(_with_remaining(remaining_s))


@pytest.mark.parametrize("remaining_s", [math.inf, 1e308, 2 * MAX_REMAINING_S])
def test_a_remaining_time_that_is_too_long_is_cut(remaining_s: float) -> None:
    """A peer cannot overflow the timeout of a poll."""
    assert decode_header(_with_remaining(remaining_s)).remaining_s == MAX_REMAINING_S


@pytest.mark.parametrize(
    ("given_s", "sent_s"), [(-3.0, 0.0), (math.inf, MAX_REMAINING_S), (None, None)]
)
def test_what_is_left_is_cut_before_it_is_sent(given_s, sent_s) -> None:
    """A call sent just after its deadline has nothing left, not a negative time."""
    frame = encode_header(PLAIN._replace(remaining_s=given_s))
    assert decode_header(frame).remaining_s == sent_s


@pytest.mark.parametrize(
    ("offset", "value", "text"),
    [(0, b"X", "magic b'XF'"), (2, b"\x09", "version 9"), (3, b"\x63", "got kind 99")],
)
def test_the_message_says_what_was_got(offset: int, value: bytes, text: str) -> None:
    """Whoever reads the log sees what came and what was wanted."""
    frame = bytearray(encode_header(PLAIN))
    frame[offset : offset + 1] = value
    with pytest.raises(RemoteProtocolError, match=text):
        decode_header(frame)


def test_a_short_frame_is_refused_with_both_lengths() -> None:
    """A cut message is not a header."""
    with pytest.raises(RemoteProtocolError, match="of 52 bytes, got a frame of 51"):
        decode_header(encode_header(PLAIN)[:-1])


def test_a_count_beyond_the_limit_is_refused_before_anything_is_made() -> None:
    """A peer cannot have us make room for four billion buffers."""
    frame = bytearray(encode_header(PLAIN))
    struct.pack_into("<I", frame, COUNT_OFFSET, 2**32 - 1)
    with pytest.raises(RemoteProtocolError, match="number of buffers"):
        decode_header(frame)


def test_a_message_with_other_buffers_than_announced_is_refused() -> None:
    """A lost or an added frame is noticed."""
    frame = encode_header(PLAIN._replace(buffer_count=2)) + b"body"
    with pytest.raises(RemoteProtocolError, match="announces 2 buffers"):
        decode_message([frame, b"one"])
    header, body = decode_message([frame, b"one", b"two"])
    assert (header.buffer_count, bytes(body)) == (2, b"body")


@pytest.mark.parametrize(
    "wrong",
    [
        {"call_id": -1},
        {"sender_rank": 2**32},
        {"sender_incarnation": 2**64},
        {"remaining_s": math.nan},
        {"buffer_count": MAX_BUFFERS + 1},
    ],
)
def test_a_field_that_does_not_fit_is_our_own_fault(wrong: dict[str, object]) -> None:
    """The sender learns it, not the receiver."""
    with pytest.raises(LocalProtocolError):
        encode_header(PLAIN._replace(**wrong))


def test_the_wake_frame_is_a_whole_message() -> None:
    """A link can tell it from every message of a peer's endpoint."""
    assert decode_message([WAKE_FRAME])[0].kind is Kind.WAKE


@given(st.lists(st.binary(max_size=50)))
def test_messages_of_a_batch_come_back_in_order(messages: list[bytes]) -> None:
    """Empty ones, too."""
    batch = encode_batch(b"header", messages)
    assert [bytes(m) for m in split_batch(memoryview(batch)[6:])] == messages


@given(st.binary(max_size=60))
def test_a_batch_that_does_not_add_up_is_refused(body: bytes) -> None:
    """Bytes of a stranger are messages whose lengths add up, or none."""
    try:
        messages = split_batch(memoryview(body))
    except RemoteProtocolError:
        return
    assert encode_batch(b"", [bytes(message) for message in messages]) == body


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"\1\0\0", "3 bytes too many"), (b"\2\0\0\0x", "of 2 bytes .* with 1 left")],
)
def test_what_does_not_add_up_is_said(body: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        split_batch(memoryview(body))


def test_a_rank_is_found_where_a_link_looks_for_it() -> None:
    """A link compares it with the owner of a key, and decodes nothing else."""
    frame = encode_header(PLAIN._replace(sender_rank=77))
    assert frame[SENDER_RANK] == pack_rank(77)
    assert frame[KIND_AT] == PLAIN.kind
    with pytest.raises(LocalProtocolError, match="no valid rank: -1"):
        pack_rank(-1)
