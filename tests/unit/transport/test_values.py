"""Errors, clocks and frames."""

from __future__ import annotations

import math

import pytest

from rpcfut_transport import (
    LocalProtocolError,
    ManualClock,
    MonotonicClock,
    PeerLost,
    TransportError,
    UnknownPeer,
)
from rpcfut_transport import _errors as errors
from rpcfut_transport._buffers import require_frames


def test_every_error_is_in_the_drawn_tree() -> None:
    """The drawing in the module is complete."""
    for name, value in vars(errors).items():
        if isinstance(value, type) and value is not TransportError:
            assert issubclass(value, TransportError)
            assert f"── {name} " in (errors.__doc__ or "")


def test_a_lost_peer_has_a_name_and_a_reason() -> None:
    """Whoever catches it needs not read the text."""
    error = PeerLost("w1", "left")
    assert (error.peer, error.reason) == ("w1", "left")
    assert str(error) == "peer 'w1' is gone: left"


def test_an_unknown_rank_comes_with_the_known_ones() -> None:
    """A typing error is seen at once."""
    assert str(UnknownPeer(3, [0, 1])) == "no peer has rank 3; known ranks: [0, 1]"


def test_a_manual_clock_moves_when_told() -> None:
    """Tests decide when time passes."""
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert clock.now_s() == 6.5
    assert repr(clock) == "<ManualClock now_s=6.500>"


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_manual_clock_never_goes_back(seconds: float) -> None:
    """It keeps the promise of a monotonic clock."""
    with pytest.raises(ValueError, match="only moves forward"):
        ManualClock().advance(seconds)


def test_the_real_clock_never_goes_back() -> None:
    """Deadlines do not move when somebody sets the time."""
    clock = MonotonicClock()
    assert clock.now_s() <= clock.now_s()
    assert repr(clock).startswith("<MonotonicClock now_s=")


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], "at least one frame"),
        (["text"], "frame 0 is a 'str'"),
        ([b"", memoryview(b"abcd")[::2]], "frame 1 .* strides"),
    ],
)
def test_frames_that_cannot_be_sent_are_refused_at_once(frames, text: str) -> None:
    """Half a message never leaves."""
    with pytest.raises(LocalProtocolError, match=text):
        require_frames(frames)


def test_frames_of_every_kind_can_be_sent() -> None:
    require_frames([b"", bytearray(3), memoryview(b"abc"), b"x"])


def test_an_error_names_a_few_of_very_many_ranks() -> None:
    """A line of a log that nobody can read helps nobody."""
    said = str(UnknownPeer(7, list(range(1000, 2100))))
    assert "known ranks: [1000, 1001" in said
    assert said.endswith("and 1068 more]")
