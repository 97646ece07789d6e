"""One worker's end of all conversations: drives session, link and liveness.

Theory of operation: one reader thread takes messages from the link and ends calls whose
time is over. The ledger decides, under its lock; links, sinks and handlers are called
here, with no lock held. The reader sleeps until the earliest deadline that it knew;
whoever opens a call that ends earlier wakes it.

A message counts only if it is meant for this incarnation and comes from a living peer
in its present one; else it is counted and dropped (RPC-5, RPC-7).
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

from rpcfut_transport._calls import CallKey, Counters, Handler, IncomingCall, ReplySink
from rpcfut_transport._errors import (
    ClosedError,
    LocalProtocolError,
    PeerLost,
    RemoteProtocolError,
    TransportError,
    UnknownPeer,
)
from rpcfut_transport._ledger import Due, Ledger
from rpcfut_transport._liveness import PidWatch
from rpcfut_transport._sender import Sender
from rpcfut_transport._session import PeerState
from rpcfut_transport._wire import Header, Kind, decode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport.links._link import Link

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")

_JOIN_TIMEOUT_S = 5.0
_MAX_SLEEP_S = 20.0  # then it looks for calls that take long
_MAX_TOLD_NBYTES = 2000
_NOTICES = frozenset({Kind.READY, Kind.GOODBYE})


class Endpoint:
    """Calls peers, takes their calls, and notices when they are gone. Any thread.

    Owns the link and closes it; is closed by whoever made it.

    Args:
        record: This worker, as its peers see it; its address is the link's.
        link: How frames travel.
        clock: What deadlines are measured on.
        handler: Takes what peers start.
    """

    def __init__(
        self, record: PeerRecord, link: Link, clock: Clock, handler: Handler
    ) -> None:
        self._record = record
        self._link = link
        self._clock = clock
        self._handler = handler
        self._sender = Sender(record, link)
        self._watch = PidWatch()
        self._ledger = Ledger(record.name)
        # Peers come and go one at a time, so that the way to a new incarnation is not
        # closed in place of the earlier one's. Calls and answers never take this lock.
        self._membership_lock = threading.Lock()
        self._reader = threading.Thread(
            target=self._read, name=f"rpcfut-reader-{record.name}", daemon=True
        )

    @property
    def record(self) -> PeerRecord:
        """This worker, as its peers see it."""
        return self._record

    @property
    def pending_count(self) -> int:
        """How many calls wait for their answer."""
        return self._ledger.pending_count

    @property
    def counters(self) -> Counters:
        """What was not used so far."""
        return self._ledger.counters

    def start(self) -> None:
        """Start reading. Does not block.

        Raises:
            LocalProtocolError: When it was started before.
            ClosedError: When it was closed.
        """
        self._ledger.start()
        self._reader.start()

    def add_peer(self, peer: PeerRecord) -> None:
        """Make a peer known, this worker itself included. Does not wait for it.

        Messages of a peer that is not known yet are dropped.

        Raises:
            LocalProtocolError: When the rank is taken by a living peer.
            LinkError: When the address is none, or not to be trusted.
            ClosedError: When this endpoint is closed.
        """
        with self._membership_lock:
            self._ledger.check_new_peer(peer.rank, peer.incarnation)
            self._link.connect(peer.rank, peer.address)
            self._ledger.add_peer(peer.rank, peer.name, peer.incarnation)
            if self._record.sees_pids_of(peer):
                on_lost = partial(self._on_peer_lost, peer.incarnation)
                self._watch.watch(peer.rank, peer.pid, peer.start_time, on_lost)
        _log.debug("%s knows %s", self._record.name, peer)

    def open_call(self, rank: int, timeout_s: float | None, sink: ReplySink) -> int:
        """Open a call; `send_call` sends it. Does not block.

        Args:
            rank: Whom to call.
            timeout_s: When to give up, from now; None for never.
            sink: Takes the end of the call.

        Returns:
            The call's id.

        Raises:
            LocalProtocolError: When the timeout is no number of seconds from 0 on, or
                this endpoint was not started.
            UnknownPeer: When there is no such peer.
            PeerLost: When the peer is gone.
            ClosedError: When this endpoint is closed.
        """
        call_id, must_wake = self._ledger.open_call(
            rank, self._clock.now_s(), timeout_s, sink
        )
        if must_wake:
            self._link.wake()
        return call_id

    def send_call(
        self, call_id: int, body: Buffer, buffers: Sequence[Buffer] = ()
    ) -> bool:
        """Send an open call, with the time that is left. Does not block.

        `body` and small `buffers` are copied; large ones must not be written to again
        (`Link.send`). The end of the call may reach its sink before this returns.

        Returns:
            False when the call had ended, or ends now because its peer is gone.

        Raises:
            LocalProtocolError: When the frames cannot be sent; the call stays open.
            LinkError: When the operating system refuses; the call stays open.
        """
        call = self._ledger.mark_sent(call_id)
        if call is None:
            return False
        remaining_s = None
        if call.deadline_s is not None:
            remaining_s = call.deadline_s - self._clock.now_s()
        header = self._sender.header(Kind.CALL, call_id, call.incarnation, remaining_s)
        try:
            is_sent = self._sender.send(call.rank, header, body, buffers)
        except TransportError:
            self._ledger.mark_unsent(call_id)
            raise
        # If it was given up meanwhile, that notice may have overtaken the call.
        self._tell_ended(self._ledger.find_ended(call_id))
        return is_sent

    def abandon_call(self, call_id: int) -> bool:
        """End a call that nobody waits for; its sink is not called. Does not block.

        The callee is told, if the call was sent.

        Returns:
            Whether it was open. If not, its sink was called, or is about to be.
        """
        was_open, ended = self._ledger.abandon_call(call_id)
        self._tell_ended(ended)
        return was_open

    def ask(self, call_id: int) -> bool:
        """Ask the callee where an open call is; see `ReplySink.on_told`.

        Does not block.

        Returns:
            False when there is nobody to ask: it was not sent, or has ended.
        """
        call = self._ledger.find_sent(call_id)
        if call is None:
            return False
        self._sender.send_about(Kind.ASK, CallKey(call_id, call.rank, call.incarnation))
        return True

    def _tell_ended(self, ended: CallKey | None) -> None:
        if ended is not None:
            self._sender.send_about(Kind.CANCEL, ended)

    def reply(
        self,
        call: IncomingCall,
        *,
        is_error: bool,
        body: Buffer,
        buffers: Sequence[Buffer] = (),
    ) -> bool:
        """Answer a call of a peer. Does not block; never raises because it is gone.

        With `is_error` it reaches `ReplySink.on_error`. Frames as for `send_call`.

        Returns:
            False when nobody waits any more: the peer is gone, or this endpoint closed.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
        """
        if not self._ledger.accepts(call.sender_rank, call.sender_incarnation):
            return False
        kind = Kind.ERROR if is_error else Kind.RESULT
        header = self._sender.header(kind, call.call_id, call.sender_incarnation)
        return self._sender.send_or_log(call.sender_rank, header, body, buffers)

    def send_notice(self, rank: int, kind: Kind) -> bool:
        """Tell a peer something that is not answered. Does not block.

        Args:
            rank: Whom to tell.
            kind: READY or GOODBYE.

        Returns:
            False when the peer is gone or unknown, or this endpoint closed.

        Raises:
            LocalProtocolError: When the kind is no notice.
        """
        if kind not in _NOTICES:
            raise LocalProtocolError(f"{kind!r} is none of {sorted(_NOTICES)!r}")
        try:
            incarnation = self._ledger.incarnation_of(rank)
        except (PeerLost, UnknownPeer):
            return False
        header = self._sender.header(kind, 0, incarnation)
        return self._sender.send_or_log(rank, header)

    def close(self) -> None:
        """Fail all open calls, end the threads, close the link. Idempotent.

        Waits for the reader for at most 5 s, then for the liveness thread for 2 s and
        for the link for 4 s. A thread of ours that calls this is not waited for.
        """
        sinks = self._ledger.close()
        self._fail(sinks, self._ledger.closed_error())
        self._link.wake()
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join(_JOIN_TIMEOUT_S)
        self._watch.close()
        self._link.close()

    def _read(self) -> None:
        try:
            while (due := self._ledger.take_due(self._clock.now_s())) is not None:
                self._do(due)
                frames = self._link.receive(self._sleep_s(due.wakes_at_s))
                if frames is not None:
                    self._on_message(frames)
        except ClosedError:
            _log.debug("%s: the link was closed", self._record.name)
        except BaseException as error:  # noqa: BLE001 - stored in every open call
            _log.exception("%s cannot read its inbox", self._record.name)
            stopped = ClosedError(f"{self._record.name!r} stopped: {error}")
            self._fail(self._ledger.close(), stopped)

    def _do(self, due: Due) -> None:
        for call in due.asks:
            self._sender.send_about(Kind.ASK, call)
        for sink in due.expired:
            self._tell(sink.on_timeout)
        for call in due.ended:
            self._tell_ended(call)
        for sink in due.slow:
            self._tell(sink.on_slow)

    def _sleep_s(self, wakes_at_s: float) -> float:
        return min(max(wakes_at_s - self._clock.now_s(), 0.0), _MAX_SLEEP_S)

    def _on_message(self, frames: list[bytes | memoryview]) -> None:
        try:
            header, body = decode_message(frames)
        except RemoteProtocolError as error:
            self._ledger.count_malformed()
            _log.debug("%s drops a message: %s", self._record.name, error)
            return
        if header.target_incarnation != self._record.incarnation:
            self._drop(header)
        elif header.kind is Kind.RESULT or header.kind is Kind.ERROR:
            self._on_reply(header, body, frames[1:])
        elif not self._ledger.accepts(header.sender_rank, header.sender_incarnation):
            self._drop(header)
        elif header.kind is Kind.CALL:
            self._on_call(header, body, frames[1:])
        else:
            self._on_control(header, body)

    def _on_control(self, header: Header, body: memoryview) -> None:
        if header.kind in _NOTICES or header.kind is Kind.CANCEL:
            self._on_notice(header)
        elif header.kind is Kind.ASK:
            self._tell(self._on_ask, header)
        elif header.kind is Kind.TELL:
            self._on_told(header, body)
        else:
            self._drop(header)

    def _drop(self, header: Header) -> None:
        self._ledger.count_dropped()
        _log.debug("%s drops %s", self._record.name, header)

    def _on_reply(
        self, header: Header, body: memoryview, buffers: list[bytes | memoryview]
    ) -> None:
        sink = self._ledger.take_reply(
            header.call_id, header.sender_rank, header.sender_incarnation
        )
        if sink is None:
            return
        if header.kind is Kind.RESULT:
            self._tell(sink.on_result, body, buffers)
        else:
            self._tell(sink.on_error, body, buffers)

    def _on_call(
        self, header: Header, body: memoryview, buffers: list[bytes | memoryview]
    ) -> None:
        deadline_s = None
        if header.remaining_s is not None:
            deadline_s = self._clock.now_s() + header.remaining_s
        call = IncomingCall(
            call_id=header.call_id,
            sender_rank=header.sender_rank,
            sender_incarnation=header.sender_incarnation,
            deadline_s=deadline_s,
            body=body,
            buffers=buffers,
        )
        self._tell(self._handler.on_call, call)

    def _on_ask(self, header: Header) -> None:
        text = self._handler.on_ask(header.sender_rank, header.call_id)
        about = CallKey(header.call_id, header.sender_rank, header.sender_incarnation)
        self._sender.send_about(Kind.TELL, about, text.encode()[:_MAX_TOLD_NBYTES])

    def _on_told(self, header: Header, body: memoryview) -> None:
        sink = self._ledger.find_sink(
            header.call_id, header.sender_rank, header.sender_incarnation
        )
        if sink is None or len(body) > _MAX_TOLD_NBYTES:
            self._drop(header)
            return
        text = bytes(body).decode(errors="replace")
        self._tell(sink.on_told, "".join(c if c.isprintable() else "?" for c in text))

    def _on_notice(self, header: Header) -> None:
        rank = header.sender_rank
        if header.kind is Kind.GOODBYE:
            self._watch.unwatch(rank)
            self._end_peer(rank, header.sender_incarnation, PeerState.LEFT, "left")
        self._tell(self._handler.on_notice, rank, header.kind, header.call_id)

    def _on_peer_lost(self, incarnation: int, rank: int, reason: str) -> None:
        if self._end_peer(rank, incarnation, PeerState.LOST, reason):
            self._tell(self._handler.on_peer_lost, rank, reason)

    def _end_peer(
        self, rank: int, incarnation: int, state: PeerState, reason: str
    ) -> bool:
        """Close the way to a peer and fail its calls; say whether it was alive."""
        with self._membership_lock:
            if not self._ledger.accepts(rank, incarnation):
                return False
            self._link.disconnect(rank)
            name, sinks = self._ledger.end_peer(rank, state, reason)
        self._fail(sinks, PeerLost(name, reason))
        return True

    def _fail(self, sinks: list[ReplySink], error: PeerLost | ClosedError) -> None:
        for sink in sinks:
            self._tell(sink.on_lost, error)

    def _tell(
        self, method: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Call what is not ours; its errors must not end our threads."""
        try:
            method(*args, **kwargs)
        except BaseException:  # noqa: BLE001 - logged; the thread serves others too
            _log.exception("%s: %r raised", self._record.name, method)

    def __repr__(self) -> str:
        ledger = self._ledger
        return (
            f"<Endpoint {self._record.name!r} rank={self._record.rank} "
            f"{ledger.state.value} peers={ledger.alive_count} "
            f"pending={ledger.pending_count}>"
        )
