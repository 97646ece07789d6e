"""What every link promises when many threads use it, or nobody is there."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut_transport import (
    KEEP_ALIVE_MIN_NBYTES,
    ClosedError,
    UnknownPeer,
)
from tests.support.links import PATIENCE_S
from tests.support.threads import Running, run_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport import Link

BIG_NBYTES = 200_000


def _receive(link: Link) -> list[Any]:
    frames = link.receive(PATIENCE_S)
    assert frames is not None, "nothing came"
    return frames


def test_messages_of_each_of_four_senders_keep_their_order(
    make_link: Callable[[], Link],
) -> None:
    """Also when two threads of each take turns, and large ones come between."""
    receiver = make_link()
    senders = [make_link() for _ in range(4)]
    for sender in senders:
        sender.connect(1, receiver.address)

    def send(name: int, link: Link, lock: threading.Lock, numbers: list[int]) -> None:
        for _ in range(200):
            with lock:  # the order is that of the calls to `send`
                numbers.append(len(numbers))
                size = BIG_NBYTES if numbers[-1] % 50 == 0 else numbers[-1] % 7
                link.send(1, [b"%d" % name, b"%d" % numbers[-1], bytes(size)])

    threads = []
    for name, link in enumerate(senders):
        shared: tuple[threading.Lock, list[int]] = (threading.Lock(), [])
        threads += [Running(lambda a=(name, link, *shared): send(*a)) for _ in range(2)]
    seen: dict[bytes, list[int]] = {}
    for _ in range(4 * 400):
        name, number, _ = map(bytes, _receive(receiver))
        seen.setdefault(name, []).append(int(number))
    for thread in threads:
        thread.result()
    assert seen == {b"%d" % name: list(range(400)) for name in range(4)}


def test_b79_every_frame_is_kept_until_a_slow_receiver_has_it(
    pair: tuple[Link, Link],
) -> None:
    """A large frame before a small last one; what is freed is made anew at once."""
    sender, receiver = pair
    for number in range(30):
        large = bytearray([number]) * BIG_NBYTES
        small = bytearray([number]) * 100
        sender.send(1, [b"%d" % number, large, small])
        small[:] = b"X" * 100  # copied, so it is ours again
        del large, small
        gc.collect()
        # Whoever took the memory of a frame that is still under way would show here.
        for _ in range(3):
            bytearray(b"X") * BIG_NBYTES
    for number in range(30):
        head, large, small = _receive(receiver)
        assert head == b"%d" % number
        assert bytes(large) == bytes([number]) * BIG_NBYTES
        assert bytes(small) == bytes([number]) * 100


@pytest.mark.parametrize(
    "nbytes", [KEEP_ALIVE_MIN_NBYTES - 1, KEEP_ALIVE_MIN_NBYTES, BIG_NBYTES]
)
def test_b79_views_of_a_buffer_arrive_as_they_were(
    pair: tuple[Link, Link], nbytes: int
) -> None:
    """Several frames of one buffer, which nobody else holds."""
    sender, receiver = pair
    whole = bytes(range(256)) * (nbytes // 256 + 3)
    views = [memoryview(whole)[start : start + nbytes] for start in range(3)]
    sender.send(1, [b"", *views])
    del views
    _, *frames = _receive(receiver)
    assert [bytes(f) for f in frames] == [whole[s : s + nbytes] for s in range(3)]


def test_b80_a_message_to_nobody_vanishes_and_delays_nobody(
    make_link: Callable[[], Link],
) -> None:
    """Sending says nothing about arriving, and other peers get theirs."""
    sender, gone, there = make_link(), make_link(), make_link()
    sender.connect(1, gone.address)
    sender.connect(2, there.address)
    gone.close()
    for number in range(100):
        assert sender.send(1, [b"for nobody", bytes(BIG_NBYTES)]) is None
        sender.send(2, [b"%d" % number])
    assert [_receive(there) for _ in range(100)] == [[b"%d" % n] for n in range(100)]


def test_a_link_that_nobody_reads_can_be_closed(pair: tuple[Link, Link]) -> None:
    """On both sides, with large messages under way."""
    sender, receiver = pair
    for _ in range(50):
        sender.send(1, [b"", bytes(BIG_NBYTES)])
    receiver.close()
    sender.close()


def test_what_was_sent_before_closing_arrives(pair: tuple[Link, Link]) -> None:
    """A goodbye is the last thing that a worker sends; it has a second to leave."""
    sender, receiver = pair
    for number in range(20):
        sender.send(1, [b"%d" % number, bytes(BIG_NBYTES)])
    sender.send(1, [b"goodbye"])
    sender.close()
    assert [bytes(_receive(receiver)[0]) for _ in range(21)] == [
        *(b"%d" % number for number in range(20)),
        b"goodbye",
    ]


def test_closing_while_others_use_a_link(make_link: Callable[[], Link]) -> None:
    """Each use succeeds or says that the link was closed; nobody hangs."""
    for _ in range(5):
        link, other = make_link(), make_link()
        link.connect(0, link.address)
        link.connect(1, other.address)
        started = threading.Barrier(6)

        def until_closed(
            act: Callable[[], object], started: threading.Barrier = started
        ) -> type[BaseException]:
            started.wait(PATIENCE_S)
            try:
                while True:
                    act()
            except ClosedError as error:
                return type(error)

        def close(
            link: Link = link, started: threading.Barrier = started
        ) -> type[BaseException]:
            started.wait(PATIENCE_S)
            link.close()
            return ClosedError

        threads = [
            Running(lambda act=act, f=until_closed: f(act))
            for act in (
                lambda link=link: link.send(0, [b"x"]),
                lambda link=link: link.send(1, [b"x", bytes(BIG_NBYTES)]),
                lambda link=link: link.receive(0.001),
                lambda link=link, to=other.address: link.connect(2, to),
                lambda link=link: (link.wake(), link.send(0, [b"y"])),
            )
        ]
        threads.append(Running(close))
        assert [thread.result() for thread in threads] == [ClosedError] * 6
        other.close()


def test_ways_come_and_go_while_others_send(make_link: Callable[[], Link]) -> None:
    """Each message goes to the peer of then, or there is none; none is mixed."""
    sender = make_link()
    receivers = [make_link() for _ in range(2)]
    is_over = threading.Event()

    def change() -> None:
        for number in range(60):
            sender.connect(1, receivers[number % 2].address)
            if number % 3 == 0:
                sender.disconnect(1)
        sender.connect(1, receivers[0].address)
        is_over.set()

    def send() -> None:
        while not is_over.is_set():
            try:
                sender.send(1, [b"one", b"two", b"three"])
            except UnknownPeer:
                continue
        sender.send(1, [b"end"])

    assert run_together(change, send, send) == [None, None, None]
    ends = 0
    while ends < 2:
        frames = [bytes(frame) for frame in _receive(receivers[0])]
        assert frames in ([b"one", b"two", b"three"], [b"end"])
        ends += frames == [b"end"]


def test_several_threads_may_receive_in_turn(pair: tuple[Link, Link]) -> None:
    """The turn is handed on after each message; none is lost, and none overtaken."""
    sender, receiver = pair
    count, turn = 400, threading.Lock()
    got: list[int] = []

    def read() -> None:
        while True:
            with turn:
                if len(got) == count:
                    return
                frames = receiver.receive(0.05)
                if frames is not None:
                    got.append(int(frames[0]))

    def send() -> None:
        for number in range(count):
            sender.send(1, [b"%d" % number])

    assert run_together(read, read, read, read, send) == [None] * 5
    assert got == list(range(count))


def test_wakes_of_many_threads_drop_no_message(pair: tuple[Link, Link]) -> None:
    """A wake may share its end of `receive` with others, but never a message's."""
    sender, receiver = pair
    is_over = threading.Event()

    def wake() -> None:
        while not is_over.is_set():
            receiver.wake()

    def send() -> None:
        for number in range(500):
            sender.send(1, [b"%d" % number])

    threads = [Running(wake), Running(wake), Running(send)]
    got: list[int] = []
    while len(got) < 500:
        frames = receiver.receive(PATIENCE_S)
        if frames is not None:
            got.append(int(frames[0]))
    is_over.set()
    for thread in threads:
        thread.result()
    assert got == list(range(500))
