"""Small messages that share a frame: in order, and nobody loses one for others."""

from __future__ import annotations

import pytest

from rpcfut_transport import (
    ClosedError,
    Kind,
    LinkError,
    LocalProtocolError,
    UnknownPeer,
    describe_this_process,
)
from rpcfut_transport._sender import Sender
from rpcfut_transport._wire import decode_message, split_batch


class Link:
    """Keeps what is sent, and fails when it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.error: BaseException | None = None

    def send(self, rank: int, frames) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.sent.append((rank, [bytes(frame) for frame in frames]))

    def arrived(self, rank: int) -> list[tuple[int, int]]:
        """The calls and numbers of the messages to a rank, in order."""
        found = []
        for to, frames in self.sent:
            if to != rank:
                continue
            header, body = decode_message(frames)
            if header.kind is Kind.BATCH:
                headers = [decode_message([one])[0] for one in split_batch(body)]
            else:
                headers = [header]
            found += [(one.call_id, one.number) for one in headers]
        return found


class World:
    def __init__(self) -> None:
        self.link = Link()
        self.ticks = 0
        record = describe_this_process(rank=0, name="w0", incarnation=7, address="x")
        self.sender = Sender(record, self.link, self._on_held)

    def _on_held(self) -> None:
        self.ticks += 1

    def send(self, call_id: int, *, rank: int = 1, may_hold: bool = True, **more):
        return self.sender.send(
            rank, Kind.CALL, call_id, 8, None, b"body", may_hold=may_hold, **more
        )


def test_what_is_held_leaves_as_one_and_in_order() -> None:
    world = World()
    for call_id in (1, 2, 3):
        assert world.send(call_id)
    assert (world.link.sent, world.ticks, world.sender.has_held) == ([], 3, True)
    assert repr(world.sender) == "<Sender of 'w0': 3 messages held>"
    world.sender.flush()
    assert len(world.link.sent) == 1
    assert world.link.arrived(1) == [(1, 1), (2, 2), (3, 3)]
    assert not world.sender.has_held
    world.sender.flush()
    assert len(world.link.sent) == 1


def test_one_that_is_held_alone_leaves_as_it_is() -> None:
    world = World()
    world.send(1)
    world.sender.flush()
    ((_, frames),) = world.link.sent
    assert decode_message(frames)[0].kind is Kind.CALL


@pytest.mark.parametrize("more", [{}, {"buffers": [b"buffer"]}])
def test_one_that_is_not_held_takes_the_others_along(more) -> None:
    world = World()
    world.send(1)
    world.send(2)
    world.send(3, may_hold=False, **more)
    assert world.link.arrived(1) == [(1, 1), (2, 2), (3, 3)]


def test_many_do_not_wait() -> None:
    world = World()
    for call_id in range(100):
        world.send(call_id)
    assert 64 <= len(world.link.arrived(1)) < 100
    world.sender.flush()
    assert world.link.arrived(1) == [(n, n + 1) for n in range(100)]


def test_each_peer_has_numbers_of_its_own() -> None:
    world = World()
    for call_id, rank in enumerate((1, 2, 1, 2)):
        world.send(call_id, rank=rank)
    world.sender.flush()
    assert world.link.arrived(1) == [(0, 1), (2, 2)]
    assert world.link.arrived(2) == [(1, 1), (3, 2)]


@pytest.mark.parametrize("error", [UnknownPeer(1, []), ClosedError("closed")])
def test_what_was_held_for_one_who_is_gone_is_dropped(error) -> None:
    """Its calls end by that."""
    world = World()
    world.send(1)
    world.link.error = error
    assert world.send(2, may_hold=False) is False
    world.send(3)
    world.link.error = error
    world.sender.flush()
    world.sender.flush()
    assert world.link.sent == []
    assert repr(world.sender) == "<Sender of 'w0': 0 messages held>"


@pytest.mark.parametrize("error", [LinkError("no memory"), KeyboardInterrupt()])
def test_who_learns_of_a_failure_is_not_sent_and_the_others_are(error) -> None:
    """An interrupt of one thread must not lose the calls of all others."""
    world = World()
    world.send(1)
    world.send(2)
    world.link.error = error
    with pytest.raises(type(error)):
        world.send(3, may_hold=False)
    assert world.sender.has_held
    world.sender.flush()
    assert world.link.arrived(1) == [(1, 1), (2, 2)]


def test_what_the_system_refuses_once_leaves_with_the_next_flush() -> None:
    world = World()
    world.send(1)
    world.link.error = LinkError("no memory")
    world.sender.flush()
    assert world.sender.has_held
    world.send(2)
    world.sender.flush()
    assert world.link.arrived(1) == [(1, 1), (2, 2)]


def test_what_nobody_waits_for_is_logged_when_it_is_refused() -> None:
    world = World()
    world.link.error = LinkError("no memory")
    assert world.sender.send_or_log(1, Kind.READY, 0, 8) is False
    assert world.sender.send_or_log(1, Kind.READY, 0, 8) is True


def test_a_message_that_makes_no_sense_costs_nobody_else() -> None:
    world = World()
    world.send(1)
    with pytest.raises(LocalProtocolError):
        world.send(-1)
    world.sender.flush()
    assert world.link.arrived(1) == [(1, 1)]
