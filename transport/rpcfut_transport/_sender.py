"""How one worker's messages leave: a header, a body and buffers to one peer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rpcfut_transport._errors import ClosedError, LinkError, UnknownPeer
from rpcfut_transport._wire import Header, Kind, encode_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._calls import CallKey
    from rpcfut_transport._peers import PeerRecord
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

    def header(
        self,
        kind: Kind,
        call_id: int,
        target: int,
        remaining_s: float | None = None,
    ) -> Header:
        """The header of a message to the incarnation `target` of a peer."""
        me = self._record
        return Header(kind, call_id, me.rank, me.incarnation, target, remaining_s, 0)

    def send(
        self,
        rank: int,
        header: Header,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
    ) -> bool:
        """Send a message.

        Returns:
            False when the peer was lost or we were closed; that ends its calls.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
            LinkError: When the operating system refuses.
        """
        if buffers:
            header = header._replace(buffer_count=len(buffers))
        try:
            self._link.send(rank, (b"".join((encode_header(header), body)), *buffers))
        except (UnknownPeer, ClosedError):
            return False
        return True

    def send_or_log(
        self,
        rank: int,
        header: Header,
        body: Buffer = b"",
        buffers: Sequence[Buffer] = (),
    ) -> bool:
        """As `send`, for what nobody waits for: what the system refuses is logged."""
        try:
            return self.send(rank, header, body, buffers)
        except LinkError as error:
            _log.debug("%s cannot send %s: %s", self._record.name, header, error)
            return False

    def send_about(self, kind: Kind, call: CallKey, body: bytes = b"") -> None:
        """Send a control message about a call to the other side of it, or log it."""
        header = self.header(kind, call.call_id, call.incarnation)
        self.send_or_log(call.rank, header, body)
