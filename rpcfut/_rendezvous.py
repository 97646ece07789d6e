"""How the workers of a group of fixed size find each other, over a torch c10d store.

Theory of operation. Each rank publishes a record and waits for those of all others;
then it makes their addresses known to its endpoint, publishes "ready", and waits until
all are ready: from there on nobody meets a stranger. Names are claimed by
compare-and-set. A rank that cannot join publishes why, so that the others fail at once
with its reason.

Groups that meet in one store are numbered, since a group may come together again once
its workers have left. A rank joins the first in which it has no record. If it has one
there, of a process that ended without leaving, it *returns*: the group had come
together, so its record takes the place of the old one, and it introduces itself to the
others by messages (`Membership`).

A rank asks the store a fixed number of questions for each look at it, however large the
group is.
"""

from __future__ import annotations

import logging
import math
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rpcfut._errors import (
    DuplicateNameError,
    MissingWorkersError,
    RendezvousError,
    RpcError,
    StoreLostError,
)
from rpcfut._records import MAX_RECORD_NBYTES, RecordForm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from rpcfut._secret import Signer
    from rpcfut._store import Store
    from rpcfut_transport import Clock, PeerRecord

_log = logging.getLogger("rpcfut.rendezvous")
_PATIENCE_S = 10.0
_FIRST_POLL_S = 0.005
_MAX_POLL_S = 0.1
_LOOK_AHEAD_S = 2.0
_MAX_DIGITS = 8
_MAX_GROUPS = 1 << 20


class Rendezvous:
    """One joining of one group. Owner thread; interruptible.

    Args:
        store: Where the ranks meet.
        prefix: What the keys of all groups in this store start with.
        rank: The own rank.
        world_size: Size of the group.
        clock: Measures the timeout.
        timeout_s: How long to wait for the others, in seconds.
        signer: Signs the own record, and knows those of the group.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        store: Store,
        *,
        prefix: str,
        rank: int,
        world_size: int,
        clock: Clock,
        timeout_s: float,
        signer: Signer | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.form = RecordForm(world_size, signer)
        self._store = store
        self._root = prefix
        self._number = 0
        self._clock = clock
        self._deadline_s = clock.now_s() + timeout_s
        self._timeout_s = timeout_s
        self._name: str | None = None  # once it is ours
        self._earlier: bytes | None = None  # the record whose place ours takes

    @property
    def is_return(self) -> bool:
        """Whether the group had come together before, with an earlier life of ours."""
        return self._earlier is not None

    def claim(self, name: str, me: PeerRecord) -> None:
        """Find the group, and claim the own name in it.

        Args:
            name: The name.
            me: This process, for comparison with earlier records of this rank.

        Raises:
            DuplicateNameError: When another rank has the name; the others are told.
            RendezvousError: When another process has this rank, or the store fails.
        """
        mine = str(self.rank)
        with store_errors():
            self._find_group(me)
            self._take_back_failure()
            key = f"{self._prefix}/name/{name}"
            owner = self._store.compare_set(key, "", mine).decode(errors="replace")
        if owner != mine:
            text = (
                f"ranks {owner} and {mine} both want the name {name!r}; give each "
                "worker a name of its own"
            )
            if not self.is_return:
                self.give_up(text)
            raise DuplicateNameError(text)
        self._name = name

    def give_up(self, reason: str) -> None:
        """Tell the others why this rank does not join, if they wait for it."""
        if self.is_return:
            return
        with store_errors():
            text = f"{self._says}{reason}".encode("utf-8", "backslashreplace")
            self._store.set(f"{self._prefix}/failed", text.decode())

    @property
    def _says(self) -> str:
        return f"rank {self.rank}: "

    def _take_back_failure(self) -> None:
        key = f"{self._prefix}/failed"
        if self._store.check([key]):
            said = self._store.get(key).decode(errors="replace")
            if said.startswith(self._says):
                self._store.delete_key(key)

    def withdraw(self) -> None:
        """Take back what this rank published, so that it can try again."""
        if self.is_return:
            return  # the record shows that this process may take its place
        keys = [self._key(kind, self.rank) for kind in ("ready", "member", "proof")]
        if self._name is not None:
            keys.append(f"{self._prefix}/name/{self._name}")
        for key in keys:
            with suppress(RuntimeError):  # a store that is gone keeps nothing
                self._store.delete_key(key)

    def leave(self) -> None:
        """Publish that this rank leaves, so that it may join the next group."""
        with store_errors():
            self._store.set(self._key("left", self.rank), "1")

    def exchange(self, record: PeerRecord) -> list[PeerRecord]:
        """Publish the own record; return those of all ranks.

        Raises:
            MissingWorkersError: When some ranks did not publish theirs in time.
            DuplicateNameError: When two records have one name.
            RendezvousError: When a rank came twice or gave up, world sizes differ, a
                record is malformed, or the store fails.
            AuthenticationError: When the own secret is not that of rank 0, or a record
                is not signed with it.
        """
        mine = self.form.write(record)
        with store_errors():
            self._compare_secrets()
            key = self._key("member", self.rank)
            before = (self._earlier or b"").decode(errors="replace")
            if self._store.compare_set(key, before, mine) != mine.encode():
                raise self._came_twice()
            if not self.is_return:
                self._wait_for("member", "did not come", tuple)
            found = self._read_all()
        records = [self.form.read(found[r], r) for r in found]
        _require_distinct(records, record)
        return records

    def _compare_secrets(self) -> None:
        """Find out whether the own secret is that of rank 0, which proves it."""
        if self.rank == 0:
            self._store.set(self._key("proof", 0), self.form.signer.prove())
            return
        self._wait_for("proof", "did not come", tuple, (0,))
        proof = self._store.get(self._key("proof", 0))
        self.form.signer.compare(proof, mine=f"rank {self.rank}", theirs="rank 0")

    def barrier(self, lost: Callable[[], Collection[int]] = tuple) -> None:
        """Wait until all ranks are ready to be called.

        Args:
            lost: Says which ranks are lost by now.

        Raises:
            MissingWorkersError: When some are not in time, or lost.
            RendezvousError: When a rank gave up, or the store fails.
        """
        with store_errors():
            self._store.set(self._key("ready", self.rank), "1")
            self._wait_for("ready", "came, but did not get ready", lost)
            self._store.set(f"{self._root}/latest", str(self._number))

    def raise_if_failed(self) -> None:
        """Say why the group does not come together, if one of the others said so.

        Raises:
            RendezvousError: When one gave up; says which, and why.
        """
        key = f"{self._prefix}/failed"
        with store_errors():
            if not self._store.check([key]):
                return
            raw = self._store.get(key)[:MAX_RECORD_NBYTES]
        reason = raw.decode(errors="replace")
        raise RendezvousError(f"the group did not come together: {reason}")

    def is_published(self, record: PeerRecord) -> bool:
        """Whether a record still is what the store says of its rank.

        Raises:
            RendezvousError: When the store fails.
        """
        with store_errors():
            key = self._key("member", record.rank)
            if self._has("left", record.rank) or not self._store.check([key]):
                return False
            raw = self._store.get(key)
            return self.form.read(raw, record.rank) == record

    # ---- which group ----------------------------------------------------------------

    def _find_group(self, me: PeerRecord) -> None:
        latest = f"{self._root}/latest"
        came_together = False
        if self._store.check([latest]):
            raw = self._store.get(latest)
            came_together = raw.isdigit() and int(raw[:_MAX_DIGITS]) < _MAX_GROUPS
            self._number = int(raw) if came_together else 0
        while not self._joins(me, came_together=came_together):
            self._number += 1
            came_together = False

    def _joins(self, me: PeerRecord, *, came_together: bool) -> bool:
        """Whether this rank has a place in the group of the present number."""
        if self._has("left", self.rank):
            return False
        key = self._key("member", self.rank)
        raw = self._store.get(key) if self._store.check([key]) else None
        if raw is not None:
            self._require_ended(self.form.read(raw, self.rank), me)
        if not came_together:
            self._store.delete_key(self._key("ready", self.rank))
            self._store.delete_key(key)
            return True
        if self._is_over(me):
            return False
        # Where each rank keeps its own records, the earlier one ended with it.
        self._earlier = raw or b""
        return True

    def _require_ended(self, earlier: PeerRecord, me: PeerRecord) -> None:
        """Refuse to be a second process of this rank, as far as can be told."""
        is_own_try = (earlier.pid, earlier.start_time) == (me.pid, me.start_time)
        if me.sees_pids_of(earlier) and not (is_own_try or me.sees_end_of(earlier)):
            raise self._came_twice()
        key = f"{self._prefix}/name/{earlier.name}"
        if self._store.check([key]) and self._store.get(key) == str(self.rank).encode():
            self._store.delete_key(key)

    def _is_over(self, me: PeerRecord) -> bool:
        """Whether all others have left, or have ended for certain."""
        for rank in range(self.world_size):
            key = self._key("member", rank)
            is_here = rank != self.rank and not self._has("left", rank)
            if is_here and self._store.check([key]):
                record = self.form.read(self._store.get(key), rank)
                if not me.sees_end_of(record):
                    return False
        return True

    def _read_all(self) -> dict[int, bytes]:
        keys = self._keys("member")
        if self._store.check(keys):
            return dict(enumerate(self._store.multi_get(keys)))
        there = [rank for rank, key in enumerate(keys) if self._store.check([key])]
        return {rank: self._store.get(keys[rank]) for rank in there}

    def _came_twice(self) -> RendezvousError:
        return RendezvousError(
            f"two processes say that they are rank {self.rank} of this group; "
            "give each its own rank, and each run its own file or port"
        )

    # ---- waiting --------------------------------------------------------------------

    @property
    def _prefix(self) -> str:
        return f"{self._root}/{self._number}"

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _keys(self, kind: str) -> list[str]:
        return [self._key(kind, rank) for rank in range(self.world_size)]

    def _wait_for(
        self,
        kind: str,
        failure: str,
        lost: Callable[[], Collection[int]],
        ranks: Collection[int] = (),
    ) -> None:
        missing = list(ranks or range(self.world_size))
        keys = [self._key(kind, rank) for rank in missing]
        poll_s = _FIRST_POLL_S
        remind_s = self._clock.now_s() + _PATIENCE_S
        # Others may give up a little earlier, and take back what they published.
        look_s = self._deadline_s - min(_LOOK_AHEAD_S, self._timeout_s / 2)
        pause = threading.Event()  # never set: an interruptible sleep
        while not self._store.check(keys):
            self.raise_if_failed()
            if lost():
                self._raise_if_lost(kind, lost)
            now_s = self._clock.now_s()
            if now_s >= min(remind_s, look_s, self._deadline_s):
                missing = self._still_missing(kind, missing)
                look_s = math.inf if now_s >= look_s else look_s
            names = ", ".join(map(str, missing))
            if now_s >= self._deadline_s:
                raise MissingWorkersError(
                    f"rank {names} of {self.world_size} {failure} within "
                    f"{self._timeout_s:.3g} s; check that it was started with the same "
                    "init_method and world_size, or raise join_timeout_s"
                )
            if now_s >= remind_s:
                remind_s = now_s + _PATIENCE_S
                _log.warning(
                    "rank %s is still waiting for rank %s of %s, for %.0f s more",
                    self.rank,
                    names,
                    self.world_size,
                    self._deadline_s - now_s,
                )
            pause.wait(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)

    def _has(self, kind: str, rank: int) -> bool:
        return self._store.check([self._key(kind, rank)])

    def _still_missing(self, kind: str, ranks: list[int]) -> list[int]:
        missing = [rank for rank in ranks if not self._has(kind, rank)]
        return missing or [r for r in range(self.world_size) if not self._has(kind, r)]

    def _raise_if_lost(self, kind: str, lost: Callable[[], Collection[int]]) -> None:
        gone = [rank for rank in sorted(lost()) if not self._has(kind, rank)]
        if gone:
            raise MissingWorkersError(
                f"rank {', '.join(map(str, gone))} of {self.world_size} was lost "
                "before it was ready"
            )


def _require_distinct(records: list[PeerRecord], mine: PeerRecord) -> None:
    """Check the records against each other, and the own one against what we are."""
    if mine not in records:
        raise RendezvousError(f"the store changed the record of rank {mine.rank}")
    for field in ("name", "incarnation", "address"):
        kind = DuplicateNameError if field == "name" else RendezvousError
        seen: dict[object, int] = {}
        for record in records:
            other = seen.setdefault(getattr(record, field), record.rank)
            if other != record.rank:
                raise kind(
                    f"ranks {other} and {record.rank} have one {field} in the store"
                )


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what torch's stores raise into errors of ours."""
    try:
        yield
    except RpcError:
        raise
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise StoreLostError(f"the store of the group failed: {reason}") from error
