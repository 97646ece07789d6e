"""Who may talk to a link that listens for other hosts, and in whose name (RPC-10)."""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from rpcfut_transport import (
    AuthenticationError,
    Kind,
    LinkError,
    LinkOptions,
    NetworkOptions,
    PeerLost,
    WayEvent,
    ZmqLink,
)
from rpcfut_transport._wire import Header, encode_batch, encode_header
from rpcfut_transport.links._address import parse_tcp_address
from tests.support.links import (
    PATIENCE_S,
    EchoHandler,
    RecordingHandler,
    RecordingSink,
    network_link,
    start_endpoint,
)
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut_transport import Endpoint

LATE_S = 5.0  # when a wrong key must have shown at last
SILENCE_S = 0.3


@pytest.fixture
def make_link() -> Iterator[Callable[..., ZmqLink]]:
    """Make links for other hosts that are closed after the test."""
    with ExitStack() as stack:

        def make(**options: object) -> ZmqLink:
            link = network_link(**options)
            stack.callback(link.close)
            return link

        yield make


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """What a stranger has: ZeroMQ, and nothing else."""
    with zmq.Context() as found:
        found.linger = 0
        yield found


class Way:
    """Hears what happens to a way."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[WayEvent, str]] = queue.SimpleQueue()

    def __call__(self, event: WayEvent, reason: str) -> None:
        if event is not WayEvent.OPENING:
            self._events.put((event, reason))

    def next(self, timeout_s: float = PATIENCE_S) -> tuple[WayEvent, str]:
        return self._events.get(timeout=timeout_s)


def message(rank: int, kind: Kind = Kind.CALL) -> list[bytes]:
    """A message in the name of a rank."""
    return [encode_header(Header(kind, 1, rank, 1, 1, None, 0))]


def connect(sender: ZmqLink, rank: int, receiver: ZmqLink, as_rank: int) -> None:
    """Have each of two links know the other."""
    sender.connect(rank, receiver.address, receiver.public_key)
    receiver.connect(as_rank, sender.address, sender.public_key)


def refused(link: ZmqLink) -> Callable[[], bool]:
    """Whether a link told somebody no."""
    assert link._network is not None
    door = link._network._door
    return lambda: door.refused_count > 0


def receive_nothing(link: ZmqLink) -> bool:
    """Whether nothing comes, for a while; what is dropped ends one look."""
    return all(link.receive(SILENCE_S / 3) is None for _ in range(3))


def test_those_who_know_each_other_talk(make_link: Callable[..., ZmqLink]) -> None:
    """Each has the other's key from its record."""
    first, second = make_link(), make_link()
    connect(first, 1, second, 0)
    first.send(1, message(0))
    assert second.receive(PATIENCE_S) == message(0)
    second.send(0, message(1))
    assert first.receive(PATIENCE_S) == message(1)


def test_a_name_is_bound_to_its_key(make_link: Callable[..., ZmqLink]) -> None:
    """A member cannot speak in the name of another; it is dropped and counted."""
    first, second, third = make_link(), make_link(), make_link()
    connect(first, 1, second, 0)
    connect(third, 1, second, 2)
    first.send(1, message(2))
    first.send(1, message(2, Kind.JOIN))
    first.send(1, message(0))
    assert second.receive(PATIENCE_S) is None
    assert second.receive(PATIENCE_S) is None
    assert second.receive(PATIENCE_S) == message(0)
    assert second.refused_count == 2
    third.send(1, message(2))
    assert second.receive(PATIENCE_S) == message(2)


@pytest.mark.parametrize("first", [b"", b"RF", b"x" * 7])
def test_a_message_without_a_name_is_dropped(
    make_link: Callable[..., ZmqLink], first: bytes
) -> None:
    """It is too short to say whose it is."""
    sender, receiver = make_link(), make_link()
    connect(sender, 1, receiver, 0)
    sender.send(1, [first, b"more"])
    assert receiver.receive(PATIENCE_S) is None
    assert receiver.refused_count == 1


def test_who_is_gone_is_not_heard_any_more(make_link: Callable[..., ZmqLink]) -> None:
    """Its connection stands, but its key is nobody's now."""
    sender, receiver = make_link(), make_link()
    connect(sender, 1, receiver, 0)
    sender.send(1, message(0))
    assert receiver.receive(PATIENCE_S) == message(0)
    receiver.disconnect(0)
    sender.send(1, message(0))
    assert receiver.receive(PATIENCE_S) is None
    assert receiver.refused_count == 1


def test_an_earlier_life_is_not_heard_in_the_name_of_the_next(
    make_link: Callable[..., ZmqLink],
) -> None:
    """A worker that was taken for dead, and its restarted namesake (RPC-7)."""
    earlier, later, receiver = make_link(), make_link(), make_link()
    connect(earlier, 1, receiver, 0)
    earlier.send(1, message(0))
    assert receiver.receive(PATIENCE_S) == message(0)
    connect(later, 1, receiver, 0)
    earlier.send(1, message(0))
    assert receiver.receive(PATIENCE_S) is None
    later.send(1, message(0))
    assert receiver.receive(PATIENCE_S) == message(0)
    assert receiver.refused_count == 1


def _speak(socket_: zmq.Socket[bytes], receiver: ZmqLink) -> None:
    socket_.set(zmq.SNDTIMEO, 0)
    socket_.connect(receiver.address)
    for kind in Kind:
        socket_.send_multipart(message(0, kind))


def _as_plain(socket_: zmq.Socket[bytes]) -> None:
    socket_.set(zmq.PLAIN_USERNAME, b"admin")
    socket_.set(zmq.PLAIN_PASSWORD, b"admin")


def _as_null(socket_: zmq.Socket[bytes]) -> None:
    socket_.set(zmq.ZAP_DOMAIN, b"rpcfut")


@pytest.mark.parametrize("prepare", [_as_null, _as_plain])
def test_b90_a_socket_without_encryption_is_not_heard(
    make_link: Callable[..., ZmqLink],
    context: zmq.Context[zmq.Socket[bytes]],
    prepare: Callable[[zmq.Socket[bytes]], None],
) -> None:
    """B90: half-configured security takes plain clients."""
    receiver, friend = make_link(), make_link()
    connect(friend, 1, receiver, 0)
    with context.socket(zmq.PUSH) as stranger:
        prepare(stranger)
        _speak(stranger, receiver)
        assert receive_nothing(receiver)
    friend.send(1, message(0))
    assert receiver.receive(PATIENCE_S) == message(0)


def test_b90_a_key_that_nobody_published_is_not_heard(
    make_link: Callable[..., ZmqLink], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """B90: the server's key is in the store, so a stranger has it."""
    receiver = make_link()
    with context.socket(zmq.PUSH) as stranger:
        stranger.curve_serverkey = receiver.public_key.encode()
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        _speak(stranger, receiver)
        assert receive_nothing(receiver)
        receiver.refuse_strangers()
        wait_until(refused(receiver), LATE_S)
        assert receive_nothing(receiver)


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('unpickled')",))


_GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0"
_GARBAGE = [
    b"",
    b"\0" * 100,
    b"\xff" * 1000,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    pickle.dumps(Bomb()),
    _GREETING + b"CURVE".ljust(20, b"\0") + b"\0" * 32 + b"\4\xc8\5HELLO" + b"\1" * 194,
    _GREETING + b"NULL".ljust(20, b"\0") + b"\0" * 32 + b"\4\x19\5READY" + b"x" * 30,
    _GREETING + b"CURVE".ljust(20, b"\0") + b"\0" * 32 + b"\6" + b"\x7f" * 8,
]


@pytest.mark.parametrize("garbage", _GARBAGE, ids=range(len(_GARBAGE)))
def test_b136_garbage_and_pickles_reach_nobody(
    make_link: Callable[..., ZmqLink], garbage: bytes
) -> None:
    """B136: the link hangs up, or waits for more, and serves the others."""
    receiver, friend = make_link(), make_link()
    connect(friend, 1, receiver, 0)
    with socket.create_connection(parse_tcp_address(receiver.address)) as stranger:
        stranger.sendall(garbage)
        friend.send(1, message(0))
        assert receiver.receive(PATIENCE_S) == message(0)
        assert receive_nothing(receiver)


@pytest.mark.slow
@pytest.mark.timeout(40)
@pytest.mark.parametrize("said", [b"", _GREETING + b"CURVE".ljust(52, b"\0")])
def test_who_does_not_go_on_is_hung_up_on(
    make_link: Callable[..., ZmqLink], said: bytes
) -> None:
    """A connection that is only held open costs five seconds, not thirty."""
    receiver = make_link()
    with socket.create_connection(parse_tcp_address(receiver.address)) as stranger:
        stranger.sendall(said)
        stranger.settimeout(15)
        while stranger.recv(100):
            pass


@pytest.mark.timeout(40)
def test_b89_a_wrong_key_of_the_peer_shows_within_seconds(
    make_link: Callable[..., ZmqLink],
) -> None:
    """B89: it looks like a host that is down, and blocks the exit."""
    sender, receiver, other = make_link(), make_link(), make_link()
    way = Way()
    sender.connect(1, receiver.address, other.public_key, way)
    sender.send(1, message(0))
    event, reason = way.next(LATE_S)
    assert event is WayEvent.REFUSED
    assert receiver.address in reason
    assert receive_nothing(receiver)


@pytest.mark.timeout(40)
def test_b89_a_peer_that_is_none_shows_within_seconds(
    make_link: Callable[..., ZmqLink], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """B89: somebody else has the port now, without encryption; it learns nothing."""
    sender = make_link()
    way = Way()
    with context.socket(zmq.PULL) as thief:
        port = thief.bind_to_random_port("tcp://127.0.0.1")
        sender.connect(1, f"tcp://127.0.0.1:{port}", make_link().public_key, way)
        sender.send(1, message(0))
        assert way.next(LATE_S)[0] is WayEvent.REFUSED
        assert not thief.poll(0)


@pytest.mark.timeout(40)
def test_b89_a_wrong_key_of_ours_shows_within_seconds(
    make_link: Callable[..., ZmqLink],
) -> None:
    """B89: on the side that is wrong; the other has told it no."""
    sender, receiver = make_link(), make_link()
    receiver.refuse_strangers()
    way = Way()
    sender.connect(1, receiver.address, receiver.public_key, way)
    event, reason = way.next(LATE_S)
    assert event is WayEvent.REFUSED
    assert receiver.address in reason
    assert refused(receiver)()


def test_b89_a_link_with_a_wrong_key_closes_at_once(
    make_link: Callable[..., ZmqLink],
) -> None:
    """B89: what was sent to nobody waits for a second, as promised, not for ever."""
    sender, receiver, other = make_link(), make_link(), make_link()
    sender.connect(1, receiver.address, other.public_key, Way())
    sender.send(1, message(0))
    closer = threading.Thread(target=sender.close)
    closer.start()
    closer.join(LATE_S)
    assert not closer.is_alive()


def test_a_key_that_is_not_known_yet_is_kept_waiting_and_let_in(
    make_link: Callable[..., ZmqLink],
) -> None:
    """Two that meet do not read each other's record at the same time."""
    sender, receiver = make_link(), make_link()
    way = Way()
    sender.connect(1, receiver.address, receiver.public_key, way)
    sender.send(1, message(0))
    assert receive_nothing(receiver)
    receiver.connect(0, sender.address, sender.public_key)
    assert way.next()[0] is WayEvent.OPENED
    assert receiver.receive(PATIENCE_S) == message(0)


def test_a_member_that_nobody_knows_yet_may_introduce_itself(
    make_link: Callable[..., ZmqLink],
) -> None:
    """And say nothing but that it wants to join."""
    joiner, member = make_link(), make_link()
    member.refuse_strangers()
    joiner.connect(1, member.address, member.public_key)
    joiner.introduce(1)
    joiner.send(1, message(7))
    joiner.send(1, message(7, Kind.JOIN))
    got: list[object] = []
    while not got:
        frames = member.receive(PATIENCE_S)
        got += [] if frames is None else [frames]
    assert got == [message(7, Kind.JOIN)]
    assert member.refused_count == 1
    member.connect(7, joiner.address, joiner.public_key)
    joiner.send(1, message(7))
    assert member.receive(PATIENCE_S) == message(7)


def test_a_stranger_cannot_introduce_itself(make_link: Callable[..., ZmqLink]) -> None:
    """It does not know the key of the group."""
    stranger, member = make_link(is_member=False), make_link()
    member.refuse_strangers()
    way = Way()
    stranger.connect(1, member.address, member.public_key, way)
    stranger.introduce(1)
    stranger.send(1, message(7, Kind.JOIN))
    assert receive_nothing(member)
    assert way.next(LATE_S)[0] is WayEvent.REFUSED


def test_no_more_guests_are_kept_than_a_thousand(
    make_link: Callable[..., ZmqLink],
) -> None:
    """A member that goes mad does not fill our memory."""
    network = make_link()._network
    assert network is not None
    network.admit(0, "tcp://127.0.0.1:1", zmq.curve_keypair()[0].decode())
    for number in range(1100):
        network._door.admit_guest(f"{number}")
    assert len(network._door._ranks) == 1001
    assert network._door.rank_of("99") is None
    assert network._door.rank_of("1099") == b""


@pytest.mark.parametrize(
    "key", ["", "x" * 39, "\\" * 40, "#" * 40, "\N{EURO SIGN}" * 40]
)
def test_a_public_key_that_is_none_is_refused(
    make_link: Callable[..., ZmqLink], key: str
) -> None:
    """It came from a record; nothing is half connected then."""
    link = make_link()
    with pytest.raises(LinkError, match="public key"):
        link.connect(1, "tcp://127.0.0.1:5", key)
    assert "peers=0" in repr(link)


def test_b91_version_6_works(make_link: Callable[..., ZmqLink]) -> None:
    """B91: the option is off by default, and the brackets go missing."""
    first, second = (make_link(interface="::1") for _ in range(2))
    assert first.address.startswith("tcp://[::1]:")
    connect(first, 1, second, 0)
    first.send(1, message(0))
    assert second.receive(PATIENCE_S) == message(0)


def _free_range() -> tuple[int, int]:
    """Two ports next to each other that nobody listens at, and nobody will soon."""
    for port in range(21000, 31000, 2):
        try:
            with (
                socket.create_server(("127.0.0.1", port)),
                socket.create_server(("127.0.0.1", port + 1)),
            ):
                return port, port + 1
        except OSError:
            continue
    raise AssertionError("no ports")


def test_b102_a_range_of_ports_is_kept_and_one_that_is_full_is_named(
    make_link: Callable[..., ZmqLink],
) -> None:
    """B102: clusters open few ports between hosts."""
    ports = _free_range()
    links = [make_link(ports=ports) for _ in range(2)]
    assert {parse_tcp_address(link.address)[1] for link in links} == set(ports)
    text = f"no port from {ports[0]} to {ports[1]} is free at 127.0.0.1"
    with pytest.raises(LinkError, match=text):
        network_link(ports=ports)


def test_a_link_listens_at_the_address_it_names_and_no_other(
    make_link: Callable[..., ZmqLink],
) -> None:
    """Never at all interfaces."""
    link = make_link()
    _, port = parse_tcp_address(link.address)
    listening = {
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    assert {entry for entry in listening if entry.endswith(f":{port:04X}")} == {
        f"0100007F:{port:04X}"
    }


def test_one_inbox_listens_for_files_and_for_other_hosts() -> None:
    """Whoever comes by file needs no key: the kernel knows whose it is."""
    options = LinkOptions(
        network=NetworkOptions(group_key=b"g" * 32, interface="127.0.0.1")
    )
    with ExitStack() as stack:
        links = [ZmqLink(options) for _ in range(3)]
        for link in links:
            stack.callback(link.close)
        receiver, by_file, by_tcp = links
        by_file.connect(0, receiver.address)
        by_tcp.connect(0, receiver.tcp_address, receiver.public_key)
        receiver.connect(2, by_tcp.address, by_tcp.public_key)
        by_file.send(0, message(1))
        assert receiver.receive(PATIENCE_S) == message(1)
        by_tcp.send(0, message(2))
        assert receiver.receive(PATIENCE_S) == message(2)
        by_tcp.send(0, message(1))
        assert receiver.receive(PATIENCE_S) is None
        assert receiver.refused_count == 1


def test_a_link_shows_no_secret(make_link: Callable[..., ZmqLink]) -> None:
    """Not even half of a key pair."""
    link = make_link()
    network = link._network
    assert network is not None
    options = NetworkOptions(group_key=b"g" * 32)
    shown = f"{link!r} {network!r} {network._keys!r} {options!r} {network._door!r}"
    shown += f"{link._monitor!r}"
    assert "gggg" not in shown
    assert network._keys.secret not in shown
    assert network._guest.secret not in shown


def _endpoints(first: int, *links: ZmqLink) -> list[Endpoint]:
    return [
        start_endpoint(n, link, EchoHandler()) for n, link in enumerate(links, first)
    ]


@pytest.mark.timeout(40)
def test_b89_calls_to_a_peer_of_another_key_fail_by_that(
    make_link: Callable[..., ZmqLink],
) -> None:
    """B89: open ones and later ones say that it is the key, and the handler hears."""
    link, other = make_link(), make_link()
    handler = RecordingHandler()
    me = start_endpoint(0, link, handler)
    they = start_endpoint(1, other, RecordingHandler())
    peer = replace(they.record, public_key=make_link().public_key)
    try:
        me.add_peer(peer)
        sink = RecordingSink()
        me.send_call(me.open_call(1, None, sink), b"x")
        how, error = sink.wait()
        assert how == "lost"
        assert isinstance(error, AuthenticationError)
        assert "'w1'" in str(error)
        assert other.address in str(error)
        assert handler.losses.get(timeout=PATIENCE_S)[0] == 1
        with pytest.raises(AuthenticationError, match=other.address) as caught:
            me.open_call(1, None, RecordingSink())
        assert isinstance(caught.value, PeerLost)
    finally:
        me.close()
        they.close()


def test_a_batch_holds_messages_of_its_sender_only(
    make_link: Callable[..., ZmqLink],
) -> None:
    """What shares a frame shares its name, which alone the link looks at."""
    handler = RecordingHandler()
    link = make_link()
    me = start_endpoint(0, link, handler)
    others = _endpoints(1, make_link(), make_link())
    try:
        for other in others:
            me.add_peer(other.record)
            other.add_peer(me.record)
        own, forged = (
            encode_header(Header(Kind.CALL, 7, rank, 100 + rank, 100, None, 0))
            for rank in (1, 2)
        )
        outer = encode_header(Header(Kind.BATCH, 0, 1, 101, 0, None, 0))
        others[0]._link.send(0, [encode_batch(outer, [forged, own])])
        assert handler.calls.get(timeout=PATIENCE_S).sender_rank == 1
        assert me.counters.dropped == 1
        assert handler.calls.empty()
    finally:
        for endpoint in (me, *others):
            endpoint.close()


def test_two_endpoints_of_two_hosts_call_each_other(
    make_link: Callable[..., ZmqLink],
) -> None:
    """Their records say how."""
    links = [make_link(), make_link()]
    endpoints = _endpoints(0, *links)
    try:
        for endpoint in endpoints:
            for other in endpoints:
                endpoint.add_peer(other.record)
        for caller in endpoints:
            for rank in range(2):
                sink = RecordingSink()
                call_id = caller.open_call(rank, 60.0, sink)
                caller.send_call(call_id, b"body", [b"", bytes(8 << 20)])
                assert sink.wait() == ("result", (b"body", [b"", bytes(8 << 20)]))
    finally:
        for endpoint in endpoints:
            endpoint.close()
