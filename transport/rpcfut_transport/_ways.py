"""Which way leads to a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcfut_transport._errors import LinkError

if TYPE_CHECKING:
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport.links._link import Link, OnWay


def open_way(
    link: Link, mine: PeerRecord, peer: PeerRecord, on_way: OnWay | None
) -> None:
    """Connect a link to a peer, by the first way that can be opened.

    Args:
        link: The link.
        mine: Who has it.
        peer: Whom to reach.
        on_way: See `Link.connect`.

    Raises:
        LinkError: When no way can be opened; says why.
        ClosedError: When the link is closed.
    """
    refused: LinkError | None = None
    for address in mine.addresses_of(peer):
        try:
            link.connect(peer.rank, address, peer.public_key, on_way)
        except LinkError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused
    raise LinkError(
        f"no way leads from worker {mine.name!r} to {peer.name!r}: they are on two "
        "hosts, or one uses no files, and not both can be reached from other hosts"
    )
