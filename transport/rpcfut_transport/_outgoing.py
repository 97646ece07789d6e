"""Calls to peers: opened, sent, asked about and given up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rpcfut_transport._calls import CallKey
from rpcfut_transport._errors import TransportError
from rpcfut_transport._flow import message_nbytes
from rpcfut_transport._wire import MAX_REMAINING_S, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._calls import ReplySink
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._flow import Ticket
    from rpcfut_transport._ledger import Ledger
    from rpcfut_transport._rooms import Rooms
    from rpcfut_transport._sender import Sender
    from rpcfut_transport.links._link import Link


class Outgoing:
    """Makes the calls of one endpoint. Any thread.

    Args:
        link: Is woken for early deadlines.
        clock: What deadlines are measured on.
        ledger: Knows the open calls.
        sender: Sends them.
        rooms: Where they take room.
    """

    def __init__(
        self, link: Link, clock: Clock, ledger: Ledger, sender: Sender, rooms: Rooms
    ) -> None:
        self._link = link
        self._clock = clock
        self._ledger = ledger
        self._sender = sender
        self._rooms = rooms

    def __repr__(self) -> str:
        return f"<Outgoing {self._ledger!r}>"

    def open_call(
        self,
        rank: int,
        timeout_s: float | None,
        sink: ReplySink,
        nbytes: int = 0,
        *,
        ticket: Ticket | None = None,
    ) -> int:
        """Open a call; `send_call` sends it. Does not block.

        Args:
            rank: Whom to call.
            timeout_s: When to give up, from now; None for never.
            sink: Takes the end of the call.
            nbytes: The `message_nbytes` of what will be sent: its room is taken now.
            ticket: That of `rooms` for this room, if one was drawn.

        Returns:
            The call's id.

        Raises:
            LocalProtocolError: When the timeout is no number of seconds from 0 on, or
                this endpoint was not started.
            UnknownPeer: When there is no such peer.
            PeerLost: When the peer is gone.
            ClosedError: When this endpoint is closed.
            QueueFull: When there is no room.
        """
        now_s = self._clock.now_s()
        call_id, _, _, must_wake = self._ledger.open_call(
            rank, now_s, timeout_s, sink, nbytes=nbytes, ticket=ticket
        )
        self._rooms.stage(call_id, rank, nbytes)
        if must_wake:
            self._link.wake()
        return call_id

    def call(
        self,
        rank: int,
        timeout_s: float | None,
        sink: ReplySink,
        body: Buffer,
        buffers: Sequence[Buffer] = (),
        *,
        ticket: Ticket | None = None,
    ) -> int:
        """Open a call and send it at once; as `open_call` and `send_call`.

        Returns:
            The call's id. The call may have ended before this returns.

        Raises:
            TransportError: As both do; no call is open then.
        """
        nbytes, now_s = message_nbytes(body, buffers), self._clock.now_s()
        call_id, incarnation, is_busy, must_wake = self._ledger.open_call(
            rank, now_s, timeout_s, sink, is_sent=True, nbytes=nbytes, ticket=ticket
        )
        remaining_s = timeout_s
        if remaining_s is not None and remaining_s > MAX_REMAINING_S:
            remaining_s = None if remaining_s == math.inf else MAX_REMAINING_S
        try:
            self._sender.send(
                rank,
                Kind.CALL,
                call_id,
                incarnation,
                remaining_s,
                body,
                buffers,
                may_hold=is_busy,
                nbytes=nbytes,
            )
        except BaseException:
            self._ledger.mark_unsent(call_id)
            self._ledger.abandon_call(call_id)
            self._rooms.release(rank, nbytes)
            raise
        if must_wake:
            self._link.wake()
        # If it was given up meanwhile, that notice may have overtaken the call.
        self._tell_ended(self._ledger.find_ended(call_id))
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
            self._rooms.unstage(call_id, is_sent=False)
            return False
        remaining_s = None
        if call.deadline_s is not None:
            remaining_s = call.deadline_s - self._clock.now_s()
        try:
            is_sent = self._sender.send(
                call.rank,
                Kind.CALL,
                call_id,
                call.incarnation,
                remaining_s,
                body,
                buffers,
                nbytes=message_nbytes(body, buffers),
            )
        except TransportError:
            self._ledger.mark_unsent(call_id)
            raise
        self._rooms.unstage(call_id, is_sent=True)
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
        self._rooms.unstage(call_id, is_sent=False)
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
