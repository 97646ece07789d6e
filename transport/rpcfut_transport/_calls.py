"""What an endpoint hands to the layer above: calls, answers, and news of peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport._errors import ClosedError, MessageLost, PeerLost
    from rpcfut_transport._wire import Kind

Work: TypeAlias = "Callable[[], None]"


class IncomingCall(NamedTuple):
    """A call of a peer, to be answered with `Endpoint.reply`.

    Args:
        call_id: The caller's number for it; numbers of two callers may be equal.
        sender_rank: Who calls.
        sender_incarnation: Which life of the caller.
        deadline_s: When the caller stops waiting, on this process's clock; None for
            never.
        body: What follows the header.
        buffers: The further frames; views of them are writable and keep them alive.
        nbytes: How much of the caller's queue it takes until it starts.
    """

    call_id: int
    sender_rank: int
    sender_incarnation: int
    deadline_s: float | None
    body: memoryview
    buffers: list[bytes | memoryview]
    nbytes: int = 0


class CallKey(NamedTuple):
    """A call between this worker and a peer, for messages about it.

    Args:
        call_id: The caller's number for it.
        rank: The peer.
        incarnation: Which life of the peer.
    """

    call_id: int
    rank: int
    incarnation: int


class CallNote(NamedTuple):
    """What its caller knows of an open call, in words, without its arguments.

    Args:
        function: What was called.
        site: ``file:line`` where.
        stage: How far it got.
    """

    function: str
    site: str
    stage: str


class CallView(NamedTuple):
    """An open call, for reports.

    Args:
        rank: Whom it waits for.
        opened_s: When it was opened, monotonic.
        deadline_s: When it ends unanswered, monotonic; None for never.
        sink: Who waits for it.
    """

    rank: int
    opened_s: float
    deadline_s: float | None
    sink: ReplySink


class PeerView(NamedTuple):
    """A peer, for reports.

    Args:
        rank: Its number in the group.
        name: Its name.
        state: ``alive``, ``left`` or ``lost``.
        reason: Why it is gone; empty while it is alive.
        queued_nbytes: How much waits to be sent to it; None if that is not known.
        last_seen_s: When its last message came, monotonic; None if that is not known.
    """

    rank: int
    name: str
    state: str
    reason: str = ""
    queued_nbytes: int | None = None
    last_seen_s: float | None = None


class ReplySink(Protocol):
    """Takes the end of one call: exactly one of its ends, exactly once (RPC-2).

    None comes after the call was abandoned. All methods run on the reader, which may be
    a user's thread that waits, or on the liveness thread, or on the one that closes the
    endpoint; they must not block. What they raise is logged.

    Args:
        call_id: Set by the endpoint when the call is opened.
    """

    call_id: int

    def on_result(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> Work | None:
        """Take the answer; what is left to do, if anything, runs on a crew thread."""
        ...

    def on_error(
        self, body: memoryview, buffers: list[bytes | memoryview]
    ) -> Work | None:
        """Take the error that the callee sent; returns work as `on_result`."""
        ...

    def on_lost(self, error: PeerLost | MessageLost | ClosedError) -> None:
        """Take note that no answer will come.

        The callee is gone, or the call or its answer was swallowed, or we closed.
        """
        ...

    def on_timeout(self) -> None:
        """Take note that the deadline passed."""
        ...

    def on_told(self, text: str) -> None:
        """Take note of where the callee says that the call is. It stays open.

        Unlike the others, this may come at any time, and more than once.
        """
        ...

    def on_slow(self) -> None:
        """Take note that the call is open for a minute. It stays open. At most once."""
        ...

    def describe(self) -> CallNote:
        """Say which call this is and how far it got. Any thread; takes no lock."""
        ...


class Handler(Protocol):
    """Takes what peers start. One for each endpoint.

    Runs on the reader, `on_peer_lost` also on the liveness thread; must not block. What
    it raises is logged.
    """

    def on_call(self, call: IncomingCall) -> Work | None:
        """Take a call; answer it any time later, on any thread.

        Returns:
            Work that serves it, for a crew thread; None if that is seen to already.
        """
        ...

    def on_notice(self, rank: int, kind: Kind, call_id: int) -> None:
        """Take a notice.

        Args:
            rank: Who sent it.
            kind: CANCEL, READY or GOODBYE.
            call_id: The sender's call that a CANCEL is about; else 0.
        """
        ...

    def on_join(self, rank: int, body: bytes) -> None:
        """Take note that somebody wants to be known, who may be anyone.

        Args:
            rank: Who it says it is.
            body: What it says of itself.
        """
        ...

    def on_welcome(self, rank: int, body: bytes) -> None:
        """Take note that a peer knows this worker.

        Args:
            rank: Who says so.
            body: Empty; or, in words, why it does not.
        """
        ...

    def on_ask(self, rank: int, call_id: int) -> str | None:
        """Say in a few words where a call of that peer is; None if it is not here.

        A call is here from `on_call` on until its answer was given to `Endpoint.reply`.
        """
        ...

    def on_peer_lost(self, rank: int, reason: str) -> None:
        """Take note that a peer died; its calls have been failed before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What an endpoint did not use.

    Args:
        late_replies: Answers to calls that had ended.
        dropped: Messages of strangers, to another incarnation, or that answer what the
            sender was not asked.
        malformed: Messages that do not decode.
        unconfirmed: Calls that ended here by a timeout or by being given up, while
            their callee, not gone, has not answered them yet.
    """

    late_replies: int
    dropped: int
    malformed: int
    unconfirmed: int
