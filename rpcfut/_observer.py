"""Takes the picture of what a worker waits for and works on.

Nothing here takes a lock, calls user code or waits: it must work while every other
thread of the process hangs, also with a lock of ours. Tables are copied in one step
each; what they show may have moved on a moment later.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

from rpcfut._call_info import whereabouts
from rpcfut._codec import peek_name
from rpcfut._control import ControlServer
from rpcfut._pending import CallHere, MadeCall, Peer, PendingReport, cut, fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rpcfut._served import ServedTable
    from rpcfut._serving import ServedView
    from rpcfut._workers import WorkerInfo
    from rpcfut_transport import CallView, Clock, Endpoint, PeerView

_log = logging.getLogger("rpcfut.control")


class Observer:
    """Tells what one agent waits for and works on. Owned by the agent.

    Args:
        worker: The agent's worker.
        endpoint: Knows the calls that were made.
        served: Knows those that came.
        pool: Runs them; its `repr` says what its threads do.
        clock: That of the endpoint.
    """

    def __init__(
        self,
        worker: WorkerInfo,
        endpoint: Endpoint,
        served: ServedTable,
        pool: object,
        clock: Clock,
    ) -> None:
        self.state = "joining"
        self._worker = worker
        self._endpoint = endpoint
        self._calls_here = served
        self._pool = pool
        self._clock = clock
        self._server: ControlServer | None = None

    def __repr__(self) -> str:
        return f"<Observer of {self._worker.name!r}, {self.state}: {self._server}>"

    def look(self) -> PendingReport:
        """Take the picture. Any thread; takes no lock."""
        peers, calls = self._endpoint.look()
        served = self._calls_here.all()
        now_s = self._clock.now_s()
        names = {peer.rank: peer.name for peer in peers}
        counts = Counter(call.rank for call in calls)
        return PendingReport(
            worker=self._worker.name,
            rank=self._worker.rank,
            pid=os.getpid(),
            state=self.state,
            threads=repr(self._pool),
            made_count=len(calls),
            served_count=len(served),
            peer_count=len(peers),
            made=fitting(_made(calls, names, now_s)),
            served=fitting(_served(call.look() for call in served)),
            peers=fitting(_peers(peers, counts, now_s)),
        )

    def answer_at(self, path: str) -> None:
        """Say what is pending to whoever of our user asks at a path, until `close`.

        A worker also works without; that it cannot be asked is logged.

        Args:
            path: Where to listen, in a folder that only our user can enter; empty for
                nowhere.
        """
        if not path:  # else the kernel would make up a name
            return
        try:
            self._server = ControlServer(
                self._worker.name, path, lambda: self.look().to_json()
            )
        except (OSError, RuntimeError) as error:
            _log.warning("python -m rpcfut pending will not find this: %s", error)

    def close(self) -> None:
        """Answer nobody any more. Idempotent; takes 2 s at most."""
        self.state = "closed"
        if self._server is not None:
            self._server.close()


def _made(
    calls: Iterable[CallView], names: dict[int, str], now_s: float
) -> Iterator[MadeCall]:
    for call in calls:
        note = call.sink.describe()
        left_s = None if call.deadline_s is None else max(0.0, call.deadline_s - now_s)
        yield MadeCall(
            to=cut(names.get(call.rank, f"rank {call.rank}")),
            function=cut(note.function),
            age_s=now_s - call.opened_s,
            left_s=left_s,
            stage=cut(note.stage),
            site=cut(note.site),
        )


def _served(calls: Iterable[ServedView]) -> Iterator[CallHere]:
    frames = sys._current_frames()  # noqa: SLF001 - there is no public way
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    for call in calls:
        function = call.function
        if not function and call.request is not None:
            function = peek_name(call.request) or ""
        frame = frames.get(call.thread) if call.thread is not None else None
        yield CallHere(
            caller=cut(call.caller),
            function=cut(function or "(its name did not decode)"),
            age_s=call.age_s,
            left_s=call.left_s,
            stage=cut(call.stage),
            thread=cut(threads.get(call.thread, "")),
            at=cut(whereabouts(frame)) if frame is not None else "",
        )


def _peers(
    peers: Iterable[PeerView], counts: Counter[int], now_s: float
) -> Iterator[Peer]:
    for peer in peers:
        seen_s = None if peer.last_seen_s is None else now_s - peer.last_seen_s
        yield Peer(
            name=cut(peer.name),
            rank=peer.rank,
            state=peer.state,
            reason=cut(peer.reason),
            open_calls=counts[peer.rank],
            queued_nbytes=peer.queued_nbytes,
            seen_s=seen_s,
        )
