"""What becomes of each message that was read.

A message counts only if it is meant for this incarnation and comes from a living peer
in its present one; else it is counted and dropped (RPC-5, RPC-7). All but one: a JOIN
may come from anyone.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from rpcfut_transport._arrivals import Arrivals
from rpcfut_transport._calls import CallKey, Handler, IncomingCall
from rpcfut_transport._errors import MessageLost, RemoteProtocolError
from rpcfut_transport._flow import frames_nbytes
from rpcfut_transport._told import decode_told, encode_told
from rpcfut_transport._wire import Kind, decode_message, split_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._calls import Work
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._ledger import Ledger
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport._rooms import Rooms
    from rpcfut_transport._sender import Sender
    from rpcfut_transport._wire import Header

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_new: Final[Any] = tuple.__new__  # IncomingCall() takes twice as long


class Filing:
    """Files messages. Only whoever reads calls `file`, one thread at a time.

    Calls and questions about calls must come in order: a call that is overtaken by a
    question about it must not run, since its caller was told that it is not here.

    Args:
        record: Whom the messages are for.
        clock: What deadlines are measured on.
        ledger: Knows the open calls and the peers.
        sender: Answers questions.
        handler: Takes what peers start.
        on_goodbye: Told the rank and incarnation of a peer that leaves.
        on_lost_to: The same of a peer that takes this worker for lost.
        rooms: Counts what came.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all that a message may be for
        self,
        record: PeerRecord,
        clock: Clock,
        ledger: Ledger,
        sender: Sender,
        handler: Handler,
        on_goodbye: Callable[[int, int], None],
        on_lost_to: Callable[[int, int], None],
        rooms: Rooms,
    ) -> None:
        self._record = record
        self._clock = clock
        self._ledger = ledger
        self._sender = sender
        self._handler = handler
        self._on_goodbye = on_goodbye
        self._on_lost_to = on_lost_to
        self._arrivals = Arrivals()
        self._rooms = rooms

    def __repr__(self) -> str:
        return f"<Filing of {self._record.name!r}>"

    def file(self, frames: list[bytes | memoryview]) -> Sequence[Work]:
        """File a message, or all that are in a batch; return the work they bring."""
        try:
            header, body = decode_message(frames)
            if header.kind is Kind.BATCH:
                return self._file_batch(header, body)
        except RemoteProtocolError as error:
            self._drop_malformed(error)
            return ()
        work = self._file_one(header, body, frames)
        return () if work is None else (work,)

    def _file_batch(self, outer: Header, body: memoryview) -> list[Work]:
        """File what shares a frame; the link has seen to who sent that (RPC-10)."""
        sender = outer.sender_rank, outer.sender_incarnation
        works: list[Work] = []
        for message in split_batch(body):
            frames: list[bytes | memoryview] = [message]
            try:
                header, inner = decode_message(frames)
            except RemoteProtocolError as error:
                self._drop_malformed(error)
                continue
            if (header.sender_rank, header.sender_incarnation) != sender:
                self._drop(header)
                continue
            work = self._file_one(header, inner, frames)
            if work is not None:
                works.append(work)
        return works

    def _file_one(  # noqa: C901, PLR0912 - each message comes this way: no calls for order
        self, header: Header, body: memoryview, frames: list[bytes | memoryview]
    ) -> Work | None:
        kind, call_id, rank, incarnation, target, remaining_s, _, number = header
        if target != self._record.incarnation:
            self._drop(header)
        elif kind is Kind.RESULT or kind is Kind.ERROR:
            self._rooms.on_answer(rank, incarnation, frames_nbytes(frames))
            sink = self._ledger.take_reply(call_id, rank, incarnation)
            if sink is not None:
                take = sink.on_result if kind is Kind.RESULT else sink.on_error
                try:  # as `tell` does, which takes longer
                    return take(body, frames[1:])
                except BaseException as error:  # noqa: BLE001 - logged, or raised
                    self._note_raised(take, error)
        elif kind is not Kind.JOIN and not self._ledger.accepts(rank, incarnation):
            self._drop(header)
        elif kind is Kind.ACK:
            return self._on_note(header, body)
        elif kind is not Kind.CALL:
            self._on_control(header, body)
        elif self._arrivals.is_new(rank, incarnation, number):
            deadline_s = None
            if remaining_s is not None:
                deadline_s = self._clock.now_s() + remaining_s
            nbytes = frames_nbytes(frames)
            self._rooms.on_call(rank, nbytes)
            call: IncomingCall = _new(
                IncomingCall,
                (call_id, rank, incarnation, deadline_s, body, frames[1:], nbytes),
            )
            try:
                return self._handler.on_call(call)
            except BaseException as error:  # noqa: BLE001 - logged, or raised
                self._note_raised(self._handler.on_call, error)
        else:
            self._drop(header)
        return None

    def _on_note(self, header: Header, body: memoryview) -> Work | None:
        try:
            return self._rooms.on_note(header.sender_rank, body)
        except RemoteProtocolError as error:
            self._drop_malformed(error)
            return None

    def _on_control(self, header: Header, body: memoryview) -> None:
        kind, _, rank, incarnation, _, _, _, number = header
        if kind is Kind.ASK:
            # Answered even if it was overtaken: the call will not run later, either.
            self._arrivals.is_new(rank, incarnation, number)
            self.tell(self._on_ask, header)
        elif kind is Kind.TELL:
            self._on_told(header, body)
        elif kind is Kind.CANCEL or kind is Kind.READY:
            self._on_notice(header)
        elif kind is Kind.REOPENED:
            self._ledger.on_reopened(rank, self._clock.now_s())
        else:
            self._on_membership(header, body)

    def _on_membership(self, header: Header, body: memoryview) -> None:
        kind, _, rank, incarnation, *_ = header
        if kind is Kind.GOODBYE:
            self._on_goodbye(rank, incarnation)
            self._on_notice(header)
        elif kind is Kind.LOST:
            self._on_lost_to(rank, incarnation)
        elif kind is Kind.JOIN:
            self.tell(self._handler.on_join, rank, bytes(body))
        elif kind is Kind.WELCOME:
            self.tell(self._handler.on_welcome, rank, bytes(body))
        else:
            self._drop(header)

    def _on_notice(self, header: Header) -> None:
        on_notice = self._handler.on_notice
        self.tell(on_notice, header.sender_rank, header.kind, header.call_id)

    def _on_ask(self, header: Header) -> None:
        text = self._handler.on_ask(header.sender_rank, header.call_id)
        about = CallKey(header.call_id, header.sender_rank, header.sender_incarnation)
        self._sender.send_about(Kind.TELL, about, encode_told(text))

    def _on_told(self, header: Header, body: memoryview) -> None:
        told = decode_told(body)
        call = CallKey(header.call_id, header.sender_rank, header.sender_incarnation)
        if told is None:
            self._drop(header)
            return
        is_here, text = told
        sink, lost_by = self._ledger.on_told(call, self._clock.now_s(), is_here=is_here)
        if sink is None:
            self._drop(header)
        elif lost_by:
            self.tell(sink.on_lost, MessageLost(lost_by))
        else:
            self.tell(sink.on_told, text)

    def _drop(self, header: Header) -> None:
        self._ledger.count_dropped()
        _log.debug("%s drops %s", self._record.name, header)

    def _drop_malformed(self, error: RemoteProtocolError) -> None:
        self._ledger.count_malformed()
        _log.debug("%s drops a message: %s", self._record.name, error)

    def tell(
        self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T | None:
        """Call what is not ours; its errors must not end our threads.

        Raises:
            BaseException: What a signal handler of the user's raised on the main
                thread, which may be reading.
        """
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - logged, or raised
            self._note_raised(method, error)
        return None

    def _note_raised(self, method: Callable[..., object], error: BaseException) -> None:
        """Log what must not end this thread, which serves others too."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not isinstance(error, Exception):
            raise error
        _log.error("%s: %r raised", self._record.name, method, exc_info=error)
