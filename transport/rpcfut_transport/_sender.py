"""How one worker's messages leave: a header, a body and buffers to one peer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rpcfut_transport._errors import ClosedError, LinkError, UnknownPeer
from rpcfut_transport._wire import encode_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._calls import CallKey
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport._wire import Kind
    from rpcfut_transport.links._link import Link

_log = logging.getLogger(__name__)


class Sender:
    """Sends messages of one worker. Any thread; does not block.

    Args:
        record: Who sends them.
        link: How they travel.
    """

    def __init__(self, record: PeerRecord, link: Link) -> None:
        self._record = record
        self._link = link

    def __repr__(self) -> str:
        return f"<Sender of {self._record.name!r}>"

    def send(  # noqa: PLR0913, PLR0917 - the fields of a header; no object for each
        self,
        rank: int,
        kind: Kind,
        call_id: int,
        target: int,
        remaining_s: float | None = None,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
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

        Returns:
            False when the peer was lost or we were closed; that ends its calls.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
            LinkError: When the operating system refuses.
        """
        me = self._record
        header = encode_header(
            (
                kind,
                call_id,
                me.rank,
                me.incarnation,
                target,
                remaining_s,
                len(buffers),
            )
        )
        try:
            self._link.send(rank, (b"".join((header, body)), *buffers))
        except (UnknownPeer, ClosedError):
            return False
        return True

    def send_or_log(
        self,
        rank: int,
        kind: Kind,
        call_id: int,
        target: int,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
    ) -> bool:
        """As `send`, for what nobody waits for: what the system refuses is logged."""
        try:
            return self.send(rank, kind, call_id, target, None, body, buffers)
        except LinkError as error:
            _log.debug(
                "%s cannot send %s of call %s to rank %s: %s",
                *(self._record.name, kind, call_id, rank, error),
            )
            return False

    def send_about(self, kind: Kind, call: CallKey, body: bytes = b"") -> None:
        """Send a control message about a call to the other side of it, or log it."""
        self.send_or_log(call.rank, kind, call.call_id, call.incarnation, body)
