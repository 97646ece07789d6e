"""How one worker's messages leave, and how many small ones share a frame.

Theory of operation. A message costs more to hand over than to make, so under load small
ones are *held*: they leave together, as one BATCH, when somebody says `flush`, when
they are many, or before the next message to that peer which is not held. So the order
of messages to a peer is that of the calls to `send`.

Whoever has a message held answers for a flush soon: a caller whose peer has much to do
anyway (the reader flushes whenever news came, and each wait does), and a thread that
will answer the next call at once (and flushes after the last). The inbox's watchdog
flushes after a moment in any case.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rpcfut_transport._errors import (
    ClosedError,
    LinkError,
    TransportError,
    UnknownPeer,
)
from rpcfut_transport._flow import encode_note
from rpcfut_transport._wire import Kind, encode_batch, encode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._calls import CallKey
    from rpcfut_transport._flow import FlowNote
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport.links._link import Link

_log = logging.getLogger(__name__)

_SMALL_NBYTES = 1024  # a larger message is never held
_MAX_HELD = 32
_CALL = Kind.CALL  # a look-up less for each message
_MAX_HELD_NBYTES = 8 * 1024


class Outbox:
    """What is held for one peer; `lock` also keeps the order of what is sent."""

    __slots__ = ("held", "lock", "nbytes", "number", "sent_answers", "sent_calls")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: list[bytes] = []
        self.nbytes = 0
        self.number = 0  # of the last message
        self.sent_calls = 0  # totals in bytes, of the peer's present life
        self.sent_answers = 0


class Sender:
    """Sends messages of one worker. Any thread; does not block.

    Args:
        record: Who sends them.
        link: How they travel.
        on_held: Called when a message is held; must see to a `flush` soon.
    """

    def __init__(
        self, record: PeerRecord, link: Link, on_held: Callable[[], None]
    ) -> None:
        self._record = record
        self._link = link
        self._on_held = on_held
        self._outboxes: dict[int, Outbox] = {}
        self.has_held = False  # whether a flush has something to do

    def __repr__(self) -> str:
        held = sum(len(box.held) for box in self._outboxes.copy().values())
        return f"<Sender of {self._record.name!r}: {held} messages held>"

    def send(  # noqa: PLR0913, PLR0917 - the fields of a header; no object for each
        self,
        rank: int,
        kind: Kind,
        call_id: int,
        target: int,
        remaining_s: float | None = None,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
        *,
        may_hold: bool = False,
        nbytes: int = 0,
    ) -> bool:
        """Send a message.

        Args:
            rank: Whom to.
            kind: What it is.
            call_id: The call that it belongs to; 0 if none.
            target: The incarnation of the peer that it is meant for.
            remaining_s: Seconds that are left for the call; None for no deadline.
            body: What follows the header.
            buffers: The further frames.
            may_hold: Whether it may be held, if it is small.
            nbytes: How much it counts, if it is a call or an answer.

        Returns:
            False when the peer was lost or we were closed; that ends its calls.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
            LinkError: When the operating system refuses.
        """
        me = self._record
        count = len(buffers)
        outbox = self._outboxes.get(rank)
        if outbox is None:
            outbox = self._outboxes.setdefault(rank, Outbox())
        route = (kind, call_id, me.rank, me.incarnation, target, remaining_s, count)
        try:
            with outbox.lock:
                outbox.number += 1
                header = encode_header((*route, outbox.number))
                message = b"".join((header, body))
                is_held = self._pass_on_locked(rank, outbox, message, buffers, may_hold)
                # Not if that raised, even if it is on its way: the peer goes by what
                # we count.
                if kind is _CALL:
                    outbox.sent_calls += nbytes
                else:
                    outbox.sent_answers += nbytes
        except (UnknownPeer, ClosedError):
            return False
        if is_held:
            self.has_held = True
            self._on_held()
        return True

    def _pass_on_locked(
        self,
        rank: int,
        outbox: Outbox,
        message: bytes,
        buffers: Sequence[Buffer],
        may_hold: bool,  # noqa: FBT001 - each message comes this way
    ) -> bool:
        """Hold a message, or send it behind what is held; whether it is held."""
        held = outbox.held
        if (may_hold or held) and not buffers and len(message) <= _SMALL_NBYTES:
            held.append(message)
            outbox.nbytes += len(message)
            is_much = len(held) >= _MAX_HELD or outbox.nbytes >= _MAX_HELD_NBYTES
            if may_hold and not is_much:
                return True
            self._flush_last_locked(rank, outbox)
            return False
        if held:
            self._flush_locked(rank, outbox)
        self._link.send(rank, (message, *buffers))
        return False

    def flush(self) -> None:
        """Send all that is held. What the system refuses is logged."""
        self.has_held = False
        for rank, outbox in list(self._outboxes.items()):
            if not outbox.held:
                continue
            try:
                with outbox.lock:
                    self._flush_locked(rank, outbox)
            except (UnknownPeer, ClosedError):
                pass  # that ends their calls
            except LinkError as error:
                _log.debug("%s cannot send: %s", self._record.name, error)

    def _flush_locked(self, rank: int, outbox: Outbox) -> None:
        held = outbox.held
        try:
            if len(held) == 1:
                self._link.send(rank, held)
            elif held:
                me = self._record
                header = encode_header(
                    (Kind.BATCH, 0, me.rank, me.incarnation, 0, None, 0, 0)
                )
                self._link.send(rank, (encode_batch(header, held),))
        except (UnknownPeer, ClosedError):
            outbox.held, outbox.nbytes = [], 0
            raise
        except BaseException:
            # An interrupt, or the system: the messages of others are not lost by that.
            # If they have left all the same, their numbers show it.
            self.has_held = True
            raise
        outbox.held, outbox.nbytes = [], 0

    def _flush_last_locked(self, rank: int, outbox: Outbox) -> None:
        """Flush what ends with the caller's message, who learns if that fails."""
        try:
            self._flush_locked(rank, outbox)
        except BaseException:
            if outbox.held:
                outbox.nbytes -= len(outbox.held.pop())
            raise

    def send_or_log(  # noqa: PLR0913 - as `send`
        self,
        rank: int,
        kind: Kind,
        call_id: int,
        target: int,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
        *,
        may_hold: bool = False,
        nbytes: int = 0,
    ) -> bool:
        """As `send`, for what nobody waits for: what the system refuses is logged."""
        try:
            return self.send(
                *(rank, kind, call_id, target, None, body, buffers),
                may_hold=may_hold,
                nbytes=nbytes,
            )
        except LinkError as error:
            _log.debug(
                "%s cannot send %s of call %s to rank %s: %s",
                *(self._record.name, kind, call_id, rank, error),
            )
            return False

    def send_about(self, kind: Kind, call: CallKey, body: bytes = b"") -> None:
        """Send a control message about a call to the other side of it, or log it."""
        self.send_or_log(call.rank, kind, call.call_id, call.incarnation, body)

    def send_note(self, rank: int, target: int, note: FlowNote) -> None:
        """Tell a peer how much of its messages was taken, and what was sent before.

        Args:
            rank: Whom to.
            target: The incarnation of the peer.
            note: What to tell; how much was sent is filled in here.
        """
        me = self._record
        header = encode_header(
            (Kind.ACK, 0, me.rank, me.incarnation, target, None, 0, 0)
        )
        outbox = self._outboxes.setdefault(rank, Outbox())
        try:
            with outbox.lock:
                if outbox.held:
                    self._flush_locked(rank, outbox)
                body = encode_note(
                    note._replace(
                        sent_calls=outbox.sent_calls, sent_answers=outbox.sent_answers
                    )
                )
                self._link.send(rank, (header + body,))
        except TransportError as error:
            _log.debug("%s cannot tell rank %s: %s", me.name, rank, error)

    def begin_life(self, rank: int) -> Outbox:
        """Count from 0: a peer of this rank begins another life."""
        outbox = self._outboxes[rank] = Outbox()
        return outbox
