"""One worker of a group: it calls its peers and serves their calls.

Theory of operation. A *reader* takes messages: a thread that waits for an answer, or
a pool thread. It decodes headers and plain values and matches ids; pool threads run
functions and decode other values, since both may run user code; a pool thread that read
a call runs it itself. The device watcher sends what had to wait for a device.
`docs/design/architecture.md` follows one call through them.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from rpcfut._calling import Caller
from rpcfut._dispatch import Dispatcher
from rpcfut._errors import LifecycleError
from rpcfut._group import wait_all
from rpcfut._leaving import Leaving
from rpcfut._membership import Membership
from rpcfut._observer import Observer
from rpcfut._options import AgentOptions
from rpcfut._placement import Placement
from rpcfut._pool import ThreadPool, current_pool
from rpcfut._reach import require_reachable
from rpcfut._records import OPEN, RecordForm
from rpcfut._serving import ServedCall
from rpcfut._streams import record_in_use
from rpcfut._watcher import DeviceWatcher
from rpcfut._workers import Worker, WorkerInfo, WorkerTable
from rpcfut_transport import (
    Endpoint,
    Kind,
    MonotonicClock,
    Patience,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from rpcfut._exposed import ExposedTable
    from rpcfut._future import Future
    from rpcfut._pending import PendingReport
    from rpcfut_transport import Clock, IncomingCall, Link, PeerRecord, Work

T = TypeVar("T")
# A list of texts is no list of workers to a type checker: lists are invariant.
Workers: TypeAlias = (
    list[str] | list[int] | list[WorkerInfo] | list[Worker] | tuple[Worker, ...]
)
_log = logging.getLogger("rpcfut.agent")

_CLOSE_S = 5.0
_GOODBYES_S = 2.0


class Agent:
    """A worker. Any thread may call it; owned by whoever made it.

    Args:
        record: Who this worker is.
        link: How its messages travel; the agent closes it.
        exposed: What peers may call.
        options: How it behaves.
        clock: Measures deadlines.
    """

    def __init__(
        self,
        record: PeerRecord,
        link: Link,
        exposed: ExposedTable,
        *,
        options: AgentOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        # Called when this worker leaves, before it says goodbye.
        self.before_goodbye: Callable[[], None] = _nothing
        self.leaves_last = False  # others need what this process keeps, as they leave
        self.info = WorkerInfo(record.name, record.rank)
        self._options = options or AgentOptions()
        self._exposed = exposed
        self._clock = clock or MonotonicClock()
        self._pool = ThreadPool(
            f"rpcfut-serve-{record.name}",
            core_threads=min(self._options.core_threads, self._options.max_threads),
            max_threads=self._options.max_threads,
        )
        self._watcher = DeviceWatcher(record.name)
        self._placement = Placement(
            record.name, self._options.placement, self._options.device_maps
        )
        record = replace(record, details=self._placement.describe())
        self._endpoint = Endpoint(
            *(record, link, self._clock, self, self._pool),
            queue_nbytes=self._options.queue_nbytes,
            patience=Patience(lost_after_s=self._options.lost_after_s),
        )
        self._dispatcher = Dispatcher(
            record.name,
            self._endpoint,
            exposed,
            self._watcher,
            self._placement,
            self._pool.submit,
        )
        self._caller = Caller(
            record.name,
            self._endpoint,
            exposed,
            self._watcher,
            self._placement,
            self._options.timeout_s,
            may_block=self._options.when_full == "block",
        )
        self.membership = Membership(
            self._endpoint,
            self._placement,
            self._pool.submit,
            self._clock,
            check=self._require_near,
        )
        self._workers = self.membership.table
        self._leaving = Leaving(
            self.info,
            self._endpoint,
            self._workers,
            self._clock,
            self._dispatcher.running,
        )
        self.membership.on_joined = self._leaving.note_joined
        self._blind: set[int] = set()  # ranks that cannot see this process end
        self._is_open = False
        self._lock = threading.Lock()
        self.observer = Observer(
            self.info, self._endpoint, self._dispatcher.served, self._pool, self._clock
        )
        self._is_closed = False
        self._pid = os.getpid()
        # Unlike atexit, this also runs at the end of a multiprocessing child.
        self._at_exit = Finalize(None, self._close_at_exit, exitpriority=0)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "running"
        pending, serving = self._endpoint.pending_count, len(self._dispatcher.running)
        return (
            f"<Agent {self.info.name!r} rank {self.info.rank} {state}: "
            f"{pending} calls pending, {serving} served>"
        )

    def start(
        self, records: Iterable[PeerRecord], form: RecordForm | None = None
    ) -> None:
        """Make the workers of the group known, the own one included, and start serving.

        Args:
            records: Who is there from the beginning.
            form: How those that come later say who they are, and how many there will
                be. By default nobody comes later.

        Raises:
            RendezvousError: When the device maps of two workers make no sense.
            TransportError: When no way leads to a worker, or an address is not to be
                trusted, a rank is taken, or the agent was started or closed before.
        """
        records = list(records)
        form = RecordForm(len(records)) if form is None else form
        self._is_open = form.world_size == OPEN
        # What was queued before this worker joined comes before all that it serves.
        self._dispatcher.order.join(record_in_use(()))
        # Before the first message is read: it may be from a worker that joins.
        self.membership.begin(records, form)
        self._endpoint.start()
        self.observer.state = "running"

    def _require_near(self, record: PeerRecord) -> None:
        """Refuse a peer that this version cannot reach."""
        mine = self._endpoint.record
        require_reachable(mine, record)
        if not mine.sees_pids_of(record):
            self._blind.add(record.rank)

    @property
    def record(self) -> PeerRecord:
        """This worker, as its peers see it."""
        return self._endpoint.record

    @property
    def exposed(self) -> ExposedTable:
        """What peers may call."""
        return self._exposed

    @property
    def lost(self) -> Collection[int]:
        """Ranks that left or were lost so far."""
        return self._leaving.away

    @property
    def workers(self) -> WorkerTable:
        """The workers of the group."""
        return self._workers

    # ---- calling --------------------------------------------------------------------

    @overload
    def rpc_async(
        self,
        to: Worker,
        function: str | Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Future[T]: ...

    @overload
    def rpc_async(
        self,
        to: Workers,
        function: str | Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Future[T]]: ...

    def rpc_async(
        self,
        to: Worker | Workers,
        function: str | Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Call a function on workers; see `rpcfut.rpc_async`."""
        if self._is_closed:
            raise LifecycleError(f"worker {self.info.name!r} was shut down")
        if os.getpid() != self._pid:
            raise LifecycleError(
                f"worker {self.info.name!r} belongs to the parent of this process: a "
                "forked child has no sockets and threads; call rpcfut.init_rpc() in a "
                "spawned process instead"
            )
        if isinstance(to, (list, tuple)):
            workers = [self._workers.find(worker) for worker in to]
            return self._caller.call(workers, function, args, kwargs, timeout)
        worker = self._workers.find(to)
        return self._caller.call([worker], function, args, kwargs, timeout)[0]

    @overload
    def rpc_sync(
        self,
        to: Worker,
        function: str | Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> T: ...

    @overload
    def rpc_sync(
        self,
        to: Workers,
        function: str | Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[T]: ...

    def rpc_sync(
        self,
        to: Worker | Workers,
        function: str | Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Call a function on workers and wait; see `rpcfut.rpc_sync`."""
        pool = current_pool()
        if pool is not None:
            with pool.blocking():
                pass  # a wait that would be refused is, before anything is sent
        sent = self.rpc_async(to, function, args, kwargs, timeout=timeout)
        try:
            return wait_all(sent) if isinstance(sent, list) else sent.wait()
        finally:
            # If this was interrupted, or one of them failed, nobody wants the others.
            for future in sent if isinstance(sent, list) else [sent]:
                if not future.done():
                    future.cancel()

    # ---- being called: the endpoint's Handler ---------------------------------------

    def on_call(self, call: IncomingCall) -> Work | None:
        """Take a peer's call. Reader."""
        caller = self._workers.name_of(call.sender_rank)
        served = ServedCall(caller, call.deadline_s, self._clock, call.body)
        return self._dispatcher.take(call, served)

    def on_notice(self, rank: int, kind: Kind, call_id: int) -> None:
        """Take a peer's notice. Reader thread."""
        if kind is Kind.CANCEL:
            served = self._dispatcher.served.find(rank, call_id)
            if served is not None:
                served.cancel()
            return
        if kind is Kind.GOODBYE:
            self._cancel_calls_of(rank)
            self.membership.on_gone(rank, "left", "it said goodbye")
        self._leaving.note_away(rank)

    def on_join(self, rank: int, body: bytes) -> None:
        """See `Membership.on_join`. Reader thread."""
        self.membership.on_join(rank, body)

    def on_welcome(self, rank: int, body: bytes) -> None:
        """See `Membership.on_welcome`. Reader thread."""
        self.membership.on_welcome(rank, body)

    def on_ask(self, rank: int, call_id: int) -> str | None:
        """Say where a peer's call is; None if it is not here. Reader thread."""
        served = self._dispatcher.served.find(rank, call_id)
        return None if served is None else served.describe()

    def _cancel_calls_of(self, rank: int) -> None:
        """Nobody waits for these any more."""
        for served in self._dispatcher.served.take_of(rank):
            served.cancel()

    def on_peer_lost(self, rank: int, reason: str) -> None:
        """Take note that a peer died. Reader or liveness thread."""
        if self.membership.on_gone(rank, "lost", reason):
            _log.warning("worker %r is lost: %s", self._workers.find(rank).name, reason)
        self._cancel_calls_of(rank)
        self._leaving.note_away(rank)

    def pending(self) -> PendingReport:
        """What this worker waits for and works on, now.

        Any thread; takes no lock, so it also works while all others hang.
        """
        return self.observer.look()

    # ---- leaving --------------------------------------------------------------------

    def shutdown(self, *, graceful: bool = True, timeout: float | None = None) -> None:
        """Leave the group; see `rpcfut.shutdown`."""
        if self._is_closed:
            return
        if os.getpid() != self._pid:  # a forked child has nothing to leave
            self._is_closed = True
            return
        if graceful and current_pool() is self._pool:
            raise LifecycleError(
                "shutdown() inside a function that a peer called would wait for that "
                "very call; have the worker's main thread call it, or pass "
                "graceful=False"
            )
        self.observer.state = "leaving"
        try:
            if graceful:
                self._leaving.wait(timeout, alone=self._is_open)
            self.before_goodbye()
            if graceful and self.leaves_last:
                self._leaving.wait_for_goodbyes(_GOODBYES_S)
        except Exception:  # noqa: BLE001 - logged: it must not keep us here
            _log.warning("worker %r leaves at once", self.info.name, exc_info=True)
        finally:
            self.close()

    def close(self) -> None:
        """Leave at once: pending calls fail, threads end. Idempotent, bounded."""
        self.membership.end()
        self._close(self._leaving.others)

    def _close_at_exit(self) -> None:
        """Leave because the process ends, perhaps by an error: that is no goodbye.

        Peers that watch this process see it end, and say so. The others are told.
        """
        self._close(self._blind)

    def _close(self, told: set[int]) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if os.getpid() != self._pid:
            return  # a forked child leaves its parent's sockets and files alone
        self._at_exit.cancel()
        for rank in told:
            with suppress(TransportError):  # nothing may stop the closing
                self._endpoint.send_notice(rank, Kind.GOODBYE)
        self._dispatcher.close()
        self.observer.close()
        self._endpoint.close()
        self._watcher.close(_CLOSE_S)
        self._pool.close()
        self._dispatcher.order.close()


def _nothing() -> None:
    """Nobody wants to know."""
