"""Links, sinks and handlers for tests of the transport, and what their children run."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from rpcfut_transport import (
    CallNote,
    Endpoint,
    IncomingCall,
    Kind,
    Link,
    LinkOptions,
    MemoryLink,
    MemoryNetwork,
    MonotonicClock,
    NetworkOptions,
    PeerRecord,
    ZmqLink,
    describe_this_process,
)
from rpcfut_transport._buffers import require_frames
from rpcfut_transport._wire import Header, encode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from rpcfut_transport import (
        Buffer,
        Clock,
        ClosedError,
        MessageLost,
        OnWay,
        Patience,
        PeerLost,
    )

PATIENCE_S = 15.0
LINK_KINDS = ("memory", "zmq", "tcp")


def make_link_maker(kind: str) -> Callable[[], Link]:
    """Return what makes links that reach each other."""
    if kind == "zmq":
        return ZmqLink
    if kind == "tcp":
        known: dict[str, TcpLink] = {}
        return lambda: TcpLink(known)
    network = MemoryNetwork()
    return lambda: MemoryLink(network)


def start_collector_of_zmq() -> None:
    """Have pyzmq start its thread for large frames, unless it runs.

    It belongs to the process, and lives until that ends; so tests must not count it as
    left behind by the first of them that sends a large frame.
    """
    from zmq.utils.garbage import gc as collector

    if collector.thread is None or not collector.thread.is_alive():
        collector.start()  # a second one would fail to bind, and take its place


def network_link(*, is_member: bool = True, **options: Any) -> ZmqLink:
    """Make a link that others reach by TCP only, at 127.0.0.1 if not said."""
    return ZmqLink(
        LinkOptions(
            network=NetworkOptions(
                group_key=b"g" * 32 if is_member else b"s" * 32,
                **{"interface": "127.0.0.1", **options},
            ),
            uses_files=False,
        )
    )


class TcpLink:
    """A link over TCP whose messages may be anything.

    A real one takes only messages with a header in the name of their sender. So each
    gets one more, and both ends of a way know the other's key.

    Args:
        known: The links that reach each other, by address.
    """

    def __init__(self, known: dict[str, TcpLink]) -> None:
        self._link = network_link()
        self._known = known
        self._rank = 1000 + len(known)
        self._header = encode_header(Header(Kind.CALL, 0, self._rank, 0, 0, None, 0))
        known[self._link.address] = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def __repr__(self) -> str:
        return repr(self._link).replace("ZmqLink", "TcpLink")

    def connect(
        self, rank: int, address: str, public_key: str = "", on_way: OnWay | None = None
    ) -> None:
        other = self._known.get(address)
        if other is None or self._link._is_closed:
            self._link.connect(rank, address, public_key, on_way)
            return
        self._link.connect(rank, address, other._link.public_key, on_way)
        for one, another in ((self, other), (other, self)):
            key = another._link.public_key
            one._link._network.admit(another._rank, another._link.address, key)

    def send(self, rank: int, frames: Sequence[Buffer]) -> None:
        require_frames(frames)
        self._link.send(rank, [b"".join((self._header, frames[0])), *frames[1:]])

    def receive(self, timeout_s: float | None) -> list[bytes | memoryview] | None:
        frames = self._link.receive(timeout_s)
        if frames is not None:
            frames[0] = bytes(frames[0])[len(self._header) :]
        return frames


class RecordingSink:
    """A `ReplySink` that keeps every end that it is told, to find a second one."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, object]] = []
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()

    def on_result(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        self._end("result", (bytes(body), [bytes(b) for b in buffers]))

    def on_error(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        self._end("error", (bytes(body), [bytes(b) for b in buffers]))

    def on_lost(self, error: PeerLost | MessageLost | ClosedError) -> None:
        self._end("lost", error)

    def on_timeout(self) -> None:
        self._end("timeout", None)

    def on_told(self, text: str) -> None:
        self.told.put(text)

    def on_slow(self) -> None:
        self.told.put("slow")

    def describe(self) -> CallNote:
        return CallNote("f", "here:1", "sent")

    def _end(self, how: str, what: object) -> None:
        self.ends.append((how, what))
        self._ended.set()

    def wait(self) -> tuple[str, object]:
        """Return how the call ended."""
        assert self._ended.wait(PATIENCE_S), "the call did not end"
        return self.ends[0]


class RecordingHandler:
    """A `Handler` that queues what it gets, for the test to take."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[IncomingCall] = queue.SimpleQueue()
        self.notices: queue.SimpleQueue[tuple[int, Kind, int]] = queue.SimpleQueue()
        self.losses: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def on_call(self, call: IncomingCall) -> None:
        self.calls.put(call)

    def on_notice(self, rank: int, kind: Kind, call_id: int) -> None:
        self.notices.put((rank, kind, call_id))

    def on_ask(self, rank: int, call_id: int) -> str | None:
        return f"call {call_id} of rank {rank} runs"

    def on_peer_lost(self, rank: int, reason: str) -> None:
        self.losses.put((rank, reason))


class EchoHandler(RecordingHandler):
    """Answers every call at once with what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: Endpoint | None = None

    def on_call(self, call: IncomingCall) -> None:
        assert self.endpoint is not None
        self.endpoint.reply(call, is_error=False, body=call.body, buffers=call.buffers)


def start_endpoint(
    rank: int,
    link: Link,
    handler: RecordingHandler,
    clock: Clock | None = None,
    incarnation: int | None = None,
    patience: Patience | None = None,
) -> Endpoint:
    """Make and start the endpoint of worker ``w<rank>`` in this process."""
    record = describe_this_process(
        rank=rank,
        name=f"w{rank}",
        incarnation=100 + rank if incarnation is None else incarnation,
        address=link.address,
        tcp_address=getattr(link, "tcp_address", ""),
        public_key=getattr(link, "public_key", ""),
    )
    endpoint = Endpoint(
        record, link, clock or MonotonicClock(), handler, patience=patience
    )
    if isinstance(handler, EchoHandler):
        handler.endpoint = endpoint
    endpoint.start()
    return endpoint


def serve_until_told(
    conn: Connection,
    rank: int,
    others: list[PeerRecord],
    *,
    echoes: bool,
    incarnation: int | None = None,
) -> None:
    """Be a worker: send the own record, then serve until anything comes back."""
    handler = EchoHandler() if echoes else RecordingHandler()
    endpoint = start_endpoint(rank, ZmqLink(), handler, incarnation=incarnation)
    for other in others:
        endpoint.add_peer(other)
    conn.send(endpoint.record)
    conn.poll(4 * PATIENCE_S)
    endpoint.close()
