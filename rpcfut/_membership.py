"""Who is in the group by now: meets those that join, and tells who comes and goes.

Theory of operation. The first members of a group of fixed size meet in the store, and
`begin` makes them known. Whoever comes later *introduces* itself: it finds the records
of the others in the store, makes their ways known to its endpoint, and sends each a
JOIN that says who it is. A member that gets one makes the joiner known and answers
WELCOME. So whoever is welcomed by all can call all, and be called by all::

    joiner                       member
      | publishes its record       |
      | reads those of all         |
      | add_peer(member)           |
      | JOIN(record) ------------> | add_peer(joiner); tells its watchers
      | <------------------WELCOME |

Two that join at once: each publishes before it reads, so at least one of them finds the
other. A JOIN is sent again now and then, until it is answered, or its receiver is lost
or has taken back its record. A member that still sees an earlier process of the same
rank or name alive does not answer: one of the two will be found to be gone.

What comes in a JOIN is hostile input, as records in the store are.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal

from rpcfut._call_info import call_site
from rpcfut._errors import (
    AuthenticationError,
    MissingWorkersError,
    RendezvousError,
)
from rpcfut._records import OPEN, RecordForm
from rpcfut._watching import Watch, WorkerEvent
from rpcfut._workers import WorkerInfo, WorkerTable
from rpcfut_transport import Kind, LinkError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rpcfut._placement import Placement
    from rpcfut_transport import Clock, Endpoint, PeerRecord

_log = logging.getLogger("rpcfut.membership")

_FIRST_AGAIN_S = 0.2
_MAX_AGAIN_S = 2.0
_REMIND_S = 10.0
_MAX_REASON_NBYTES = 2000


class Membership:
    """The members of one worker's group. Any thread; owned by the agent.

    Args:
        endpoint: How they are reached.
        placement: Where their arrays arrive.
        submit: Runs a task on a pool thread.
        clock: Measures timeouts.
        check: Raises a RendezvousError for a worker that cannot be reached.

    Attributes:
        on_joined: Called with the rank of each member that came. Must not block.
    """

    on_joined: Callable[[int], None]

    def __init__(
        self,
        endpoint: Endpoint,
        placement: Placement,
        submit: Callable[[Callable[[], None]], None],
        clock: Clock,
        *,
        check: Callable[[PeerRecord], None],
    ) -> None:
        me = endpoint.record
        self._me = me
        self._endpoint = endpoint
        self._placement = placement
        self._submit = submit
        self._clock = clock
        self._check = check
        self._form = RecordForm(OPEN)
        self.table = WorkerTable((_info(me),))
        # Members come and go one at a time; entered again when one takes the place of
        # another. Calls do not take it.
        self._lock = threading.RLock()
        self._records = {me.rank: me}
        self._watches: list[Watch] = []
        self._answers = threading.Condition()
        self._awaited: set[tuple[int, int]] = set()  # rank and incarnation
        self._refusal = ""
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<Membership of {self._me.name!r}: {len(self._records)} members>"

    def begin(self, records: Iterable[PeerRecord], form: RecordForm) -> None:
        """Make the first members known, the own worker included.

        Raises:
            RendezvousError: When the device maps of two of them make no sense.
            TransportError: When an address is not to be trusted.
        """
        records = list(records)
        self._form = form
        for record in records:
            self._check(record)
        with self._lock:
            self._placement.meet(records, all_are_here=len(records) == form.world_size)
            for record in records:
                self._add(record)

    def introduce(
        self,
        records: Iterable[PeerRecord],
        is_published: Callable[[PeerRecord], bool],
        timeout_s: float,
    ) -> None:
        """Meet those who are members already: return when they know this worker.

        Owner thread; interruptible.

        Args:
            records: What they published.
            is_published: Whether one still is what its worker says of itself.
            timeout_s: How long to wait for their answers, in seconds.

        Raises:
            MissingWorkersError: When one neither answers nor is gone; names it.
            RendezvousError: When one refuses; says why.
            TransportError: When an address is not to be trusted.
        """
        deadline_s = self._clock.now_s() + timeout_s
        waits_for = [r for r in records if self._calls_on(r)]
        remind_s = self._clock.now_s() + _REMIND_S
        again_s = _FIRST_AGAIN_S
        while waits_for:
            for record in waits_for:
                self._send(record, Kind.JOIN, self._form.write(self._me))
            self._await_answers(min(again_s, deadline_s - self._clock.now_s()))
            again_s = min(2 * again_s, _MAX_AGAIN_S)
            waits_for = [r for r in waits_for if self._is_awaited(r, is_published)]
            names = ", ".join(f"{r.name!r} (rank {r.rank})" for r in waits_for)
            if waits_for and self._clock.now_s() >= deadline_s:
                raise MissingWorkersError(
                    f"worker {names} did not answer within {timeout_s} s that it knows "
                    f"{self._me.name!r}; it does not while it sees an earlier process "
                    "of that name or rank alive, or while it is stopped itself"
                )
            if waits_for and self._clock.now_s() >= remind_s:
                remind_s = self._clock.now_s() + _REMIND_S
                _log.warning("%r waits for an answer of %s", self._me.name, names)

    def record_of(self, rank: int) -> PeerRecord | None:
        """What the member of a rank says of itself; None if there is none."""
        return self._records.get(rank)

    def watch(self, callback: Callable[[WorkerEvent], object]) -> Watch:
        """Have somebody told who comes and goes; the present members first."""
        watch = Watch(callback, self._submit, call_site())
        with self._lock:
            self._watches.append(watch)
            watch.tell(WorkerEvent("joined", worker) for worker in self.table)
        return watch

    def end(self) -> None:
        """Let nobody else join: this worker says goodbye to those that are here."""
        with self._lock:
            self._has_ended = True

    # ---- news, on the reader's and the liveness thread -------------------------------

    def on_join(self, rank: int, body: bytes) -> None:
        """Take the introduction of a joiner, who may be anyone."""
        try:
            record = self._form.read(body, rank)
        except (RendezvousError, AuthenticationError) as error:
            _log.warning("%r does not know who joins: %s", self._me.name, error)
            return
        with self._lock:
            if self._has_ended:
                return  # it would hear no goodbye
            if self._records.get(rank) == record:
                self._resolve(record)
                self._send(record, Kind.WELCOME)
            elif rank != self._me.rank and self._is_free_for(record):
                self._admit(record)

    def on_welcome(self, rank: int, body: bytes) -> None:
        """Take the answer of a member."""
        with self._lock:
            record = self._records.get(rank)
        if record is None:
            return
        if body:
            text = body[:_MAX_REASON_NBYTES].decode(errors="replace")
            said = "".join(c if c.isprintable() else "?" for c in text)
            with self._answers:
                self._refusal = f"worker {record.name!r} (rank {rank}): {said}"
        self._resolve(record)

    def on_gone(self, rank: int, how: Literal["left", "lost"], reason: str) -> bool:
        """Take note that a peer said goodbye, or was lost; whether it was a member."""
        with self._lock:
            record = self._records.pop(rank, None)
            if record is None:
                return False  # one that was refused
            self.table.remove(_info(record))
            self._tell(WorkerEvent(how, _info(record), reason))
        self._resolve(record)
        return True

    # ---- how ------------------------------------------------------------------------

    def _add(self, record: PeerRecord) -> None:
        """Make a worker known; lock held."""
        self.table.add(_info(record))  # its calls may come at once
        try:
            self._endpoint.add_peer(record)
        except BaseException:
            self.table.remove(_info(record))
            raise
        self._records[record.rank] = record
        if record.rank != self._me.rank:
            self._tell(WorkerEvent("joined", _info(record)))
            self.on_joined(record.rank)

    def _meet(self, record: PeerRecord) -> None:
        """Make a worker known that was not there from the beginning; lock held."""
        self._check(record)
        members = [*self._records.values(), record]
        self._placement.meet(
            members, all_are_here=len(members) == self._form.world_size
        )
        self._add(record)

    def _calls_on(self, record: PeerRecord) -> bool:
        """Make a member known to which this worker introduces itself.

        Returns:
            False when there is nobody to wait for: it is this worker, is gone, or was
            quicker to introduce itself.
        """
        if record.rank == self._me.rank or self._me.sees_end_of(record):
            return False
        with self._lock:
            if record.rank in self._records:
                return False
            try:
                self._meet(record)
            except LinkError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    _log.debug("%r is gone: %s", record.name, error)
                    return False
                raise
            with self._answers:
                self._awaited.add((record.rank, record.incarnation))
        return True

    def _is_free_for(self, record: PeerRecord) -> bool:
        """Whether nobody who is alive has the rank or the name of a joiner."""
        for known in list(self._records.values()):
            if known.rank != record.rank and known.name != record.name:
                continue
            if known.rank == self._me.rank:
                self._refuse(
                    record, f"the name {record.name!r} is mine, and I am alive"
                )
                return False
            if self._me.sees_end_of(known):
                reason = f"its process {known.pid} ended"
                self._endpoint.lose_peer(known.rank, known.incarnation, reason)
            if known.rank in self._records:  # or on its way out, on another thread
                _log.info("%r sees %r alive still", self._me.name, known.name)
                return False
        return True

    def _admit(self, record: PeerRecord) -> None:
        try:
            self._meet(record)
        except (RendezvousError, TransportError) as error:
            _log.warning("%r refuses %r: %s", self._me.name, record.name, error)
            self._refuse(record, str(error))
            return
        self._send(record, Kind.WELCOME)
        _log.info("worker %r joined as rank %s", record.name, record.rank)

    def _refuse(self, record: PeerRecord, reason: str) -> None:
        """Tell a joiner why not. It stays a peer until it says goodbye, or ends."""
        try:
            self._endpoint.add_peer(record)
        except TransportError as error:
            _log.debug("%r cannot be told: %s", record.name, error)
            return
        self._send(record, Kind.WELCOME, reason)

    def _send(self, record: PeerRecord, kind: Kind, text: str = "") -> None:
        self._endpoint.send_notice(record.rank, kind, text.encode())

    def _resolve(self, record: PeerRecord) -> None:
        with self._answers:
            self._awaited.discard((record.rank, record.incarnation))
            self._answers.notify_all()

    def _await_answers(self, timeout_s: float) -> None:
        with self._answers:
            self._answers.wait_for(
                lambda: self._refusal or not self._awaited, timeout_s
            )
            if self._refusal:
                raise RendezvousError(
                    f"worker {self._me.name!r} cannot join: {self._refusal}"
                )

    def _is_awaited(
        self, record: PeerRecord, is_published: Callable[[PeerRecord], bool]
    ) -> bool:
        key = (record.rank, record.incarnation)
        with self._answers:
            if key not in self._awaited:
                return False
        if is_published(record):
            return True
        self._endpoint.note_left(record.rank, record.incarnation)
        self.on_gone(record.rank, "left", "it took back its record")
        return False

    def _tell(self, event: WorkerEvent) -> None:
        self._watches = [watch for watch in self._watches if not watch.is_closed]
        for watch in self._watches:
            watch.tell((event,))


def _info(record: PeerRecord) -> WorkerInfo:
    return WorkerInfo(record.name, record.rank)
