"""The ways to peers, and how it is noticed that one is gone.

Theory of operation. A process on this host is watched by a pidfd, if the kernel or a
signed record says which one it is; if the kernel says so, nothing else is needed. In
all other cases the way is watched: heartbeats go along it, and the ledger counts for
how long it stays broken (RPC-7).

A peer that is lost because its way stayed broken may be alive. It is heard no more, and
whatever it waits for would never come. So a last way is left open to it, with nothing
on it but the news that it is lost to us.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rpcfut_transport._calls import CallKey
from rpcfut_transport._errors import TransportError
from rpcfut_transport._liveness import PidWatch
from rpcfut_transport._peer_state import PeerState
from rpcfut_transport._proof import Finding, find_process
from rpcfut_transport._ways import open_way
from rpcfut_transport._wire import Kind
from rpcfut_transport.links._link import WayEvent

if TYPE_CHECKING:
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._ledger import Ledger
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport._proof import Proof
    from rpcfut_transport._sender import Sender
    from rpcfut_transport.links._link import Link

_log = logging.getLogger(__name__)


class _EndPeer(Protocol):
    def __call__(
        self, rank: int, incarnation: int, state: PeerState, reason: str
    ) -> bool:
        """End a peer and its calls; say whether it was alive."""
        ...


class Contacts:
    """Opens ways to peers and watches over them. Any thread.

    Args:
        record: This worker.
        link: What the ways belong to.
        ledger: Counts how long ways are broken.
        sender: Tells peers about their ways.
        clock: Measures that.
        end_peer: Called when a peer is gone, on any thread.
    """

    def __init__(
        self,
        record: PeerRecord,
        link: Link,
        ledger: Ledger,
        sender: Sender,
        clock: Clock,
        end_peer: _EndPeer,
    ) -> None:
        self._record = record
        self._link = link
        self._ledger = ledger
        self._sender = sender
        self._clock = clock
        self._end_peer = end_peer
        self._watch = PidWatch()
        # Peers come and go one at a time, so that the way to a new incarnation is not
        # closed in place of the earlier one's. Calls and answers never take this lock.
        self.lock = threading.Lock()
        self._peers: dict[int, PeerRecord] = {}

    def open(self, peer: PeerRecord) -> Proof:
        """Open the way to a peer that is not in the ledger yet. Under the lock.

        Returns:
            What is known of its process, for `watch`.

        Raises:
            LinkError: When the address is none, or not to be trusted.
            ClosedError: When the link is closed.
        """
        proof = find_process(self._record, peer)
        is_sure = proof.finding in {Finding.PROVED, Finding.OWN, Finding.GONE}
        on_way = None if is_sure else partial(self._on_way, peer)
        try:
            open_way(self._link, self._record, peer, on_way)
        except BaseException:
            proof.close()
            raise
        if not is_sure and self._record.host_id == peer.host_id:
            _log.debug("the end of %r shows late: %s", peer.name, proof.reason)
        self._peers[peer.rank] = peer
        return proof

    def watch(self, peer: PeerRecord, proof: Proof) -> None:
        """Watch the process of a peer that is in the ledger now.

        Raises:
            ClosedError: When this was closed.
        """
        if proof.pidfd is not None or proof.finding is Finding.GONE:
            on_end = partial(self._on_end, peer)
            reason = proof.reason or f"its process {peer.pid} ended"
            self._watch.watch(peer.rank, proof.pidfd, on_end, reason)

    def unwatch(self, rank: int) -> None:
        """Take note that a peer said goodbye: its process may end."""
        self._watch.unwatch(rank)

    def lose(self, rank: int, incarnation: int, reason: str) -> None:
        """End a peer whose way stayed broken, and leave word for it."""
        self._watch.unwatch(rank)
        if not self._end_peer(rank, incarnation, PeerState.LOST, reason):
            return
        peer = self._peers[rank]
        try:
            with self.lock:
                if self._peers.get(rank) is not peer:
                    return  # a new incarnation has the way now
                open_way(self._link, self._record, peer, None)
            self._sender.send_about(Kind.LOST, CallKey(0, rank, incarnation))
        except TransportError as error:
            _log.debug("no word is left for %r: %s", peer.name, error)

    def on_lost_to(self, rank: int, incarnation: int) -> None:
        """Take note that a peer takes this worker for lost."""
        reason = "it took this worker for lost, and hears it no more"
        self._end_peer(rank, incarnation, PeerState.LOST, reason)

    def close(self) -> None:
        """Stop watching. Idempotent; waits for at most 2 s."""
        self._watch.close()

    def _on_end(self, peer: PeerRecord, rank: int, reason: str) -> None:
        self._end_peer(rank, peer.incarnation, PeerState.LOST, reason)

    def _on_way(self, peer: PeerRecord, event: WayEvent, reason: str) -> None:
        """Take note of what happens to a way. The link's thread."""
        rank, incarnation = peer.rank, peer.incarnation
        if event is WayEvent.REFUSED:
            self._watch.unwatch(rank)
            self._end_peer(rank, incarnation, PeerState.REFUSED, reason)
            return
        is_new, must_wake = self._ledger.on_way(
            rank, incarnation, event, self._clock.now_s()
        )
        if is_new:  # answers may be lost: the peer had better ask about its calls
            self._sender.send_about(Kind.REOPENED, CallKey(0, rank, incarnation))
        if must_wake:
            self._link.wake()

    def __repr__(self) -> str:
        return f"<Contacts with ranks {sorted(self._peers)} {self._watch!r}>"
