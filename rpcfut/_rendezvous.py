"""How the workers of a group find each other, over a torch c10d store.

Theory of operation. Each rank publishes a record and waits for those of all others;
then it makes their addresses known to its endpoint, publishes "ready", and waits until
all are ready: from there on nobody meets a stranger. Names are claimed by
compare-and-set. A rank that cannot join publishes why, so that the others fail at once
with its reason.

The store is open to anyone who can reach it, so what is read from it is hostile input:
records are size-checked and typed here, and addresses are checked again by the link.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rpcfut._errors import (
    DuplicateNameError,
    MissingWorkersError,
    RendezvousError,
)
from rpcfut_transport import PeerRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from rpcfut._store import Store
    from rpcfut_transport import Clock

_MAX_RECORD_NBYTES = 64 << 10
_log = logging.getLogger("rpcfut.rendezvous")
_PATIENCE_S = 10.0
_FIRST_POLL_S = 0.005
_MAX_POLL_S = 0.1
_FIELDS = {
    "rank": int,
    "name": str,
    "incarnation": int,
    "address": str,
    "pid": int,
    "start_time": int,
    "pid_namespace": int,
    "host_id": str,
    "details": str,
}
_WORLD_SIZE = "world_size"


class Rendezvous:
    """One joining of one group. Owner thread; interruptible.

    Args:
        store: Where the ranks meet.
        prefix: What this group's keys start with; each group of one store has its own.
        rank: The own rank.
        world_size: Size of the group.
        clock: Measures the timeout.
        timeout_s: How long to wait for the others, in seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        prefix: str,
        rank: int,
        world_size: int,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._world_size = world_size
        self._clock = clock
        self._deadline_s = clock.now_s() + timeout_s
        self._timeout_s = timeout_s
        self._name: str | None = None  # once it is ours

    def claim_name(self, name: str) -> None:
        """Claim the own name.

        Raises:
            DuplicateNameError: When another rank has it; the others are told.
            RendezvousError: When the store fails.
        """
        mine = str(self._rank)
        with _store_errors():
            if self._store.check([self._key("failed", self._rank)]):
                self._store.delete_key(self._key("failed", self._rank))
            key = f"{self._prefix}/name/{name}"
            owner = self._store.compare_set(key, "", mine).decode()
        if owner != mine:
            text = (
                f"ranks {owner} and {mine} both want the name {name!r}; give each "
                "worker a name of its own"
            )
            self.give_up(text)
            raise DuplicateNameError(text)
        self._name = name

    def give_up(self, reason: str) -> None:
        """Tell the others why this rank does not join."""
        with _store_errors():
            text = f"rank {self._rank}: {reason}".encode("utf-8", "backslashreplace")
            self._store.set(self._key("failed", self._rank), text.decode())

    def withdraw(self) -> None:
        """Take back what this rank published, so that it can try again."""
        keys = [self._key("ready", self._rank), self._key("member", self._rank)]
        if self._name is not None:
            keys.append(f"{self._prefix}/name/{self._name}")
        for key in keys:
            with suppress(RuntimeError):  # a store that is gone keeps nothing
                self._store.delete_key(key)

    def exchange(self, record: PeerRecord) -> list[PeerRecord]:
        """Publish the own record; return those of all ranks.

        Raises:
            MissingWorkersError: When some ranks did not publish theirs in time.
            RendezvousError: When a rank came twice or gave up, world sizes differ, a
                record is malformed, or the store fails.
        """
        fields = {name: getattr(record, name) for name in _FIELDS}
        mine = json.dumps({**fields, _WORLD_SIZE: self._world_size})
        with _store_errors():
            key = self._key("member", self._rank)
            if self._store.compare_set(key, "", mine).decode() != mine:
                raise RendezvousError(
                    f"two processes say that they are rank {self._rank} of this group; "
                    "give each its own rank, and each run its own file or port"
                )
            self._wait_for("member", "did not come", lambda: ())
            records = [self._read(rank) for rank in range(self._world_size)]
        _require_distinct(records, record)
        return records

    def barrier(self, lost: Callable[[], Collection[int]] = tuple) -> None:
        """Wait until all ranks are ready to be called.

        Args:
            lost: Says which ranks are lost by now.

        Raises:
            MissingWorkersError: When some are not in time, or lost.
            RendezvousError: When a rank gave up, or the store fails.
        """
        with _store_errors():
            self._store.set(self._key("ready", self._rank), "1")
            self._wait_for("ready", "came, but did not get ready", lost)

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _wait_for(
        self, kind: str, failure: str, lost: Callable[[], Collection[int]]
    ) -> None:
        missing = list(range(self._world_size))
        poll_s = _FIRST_POLL_S
        remind_s = self._clock.now_s() + _PATIENCE_S
        pause = threading.Event()  # never set: an interruptible sleep
        while True:
            missing = self._still_missing(kind, missing)
            if not missing:
                return
            self._raise_if_failed(missing)
            names = ", ".join(map(str, missing))
            gone = sorted(set(missing) & set(lost()))
            if gone:
                raise MissingWorkersError(
                    f"rank {', '.join(map(str, gone))} of {self._world_size} was lost "
                    "before it was ready"
                )
            now_s = self._clock.now_s()
            if now_s >= self._deadline_s:
                raise MissingWorkersError(
                    f"rank {names} of {self._world_size} {failure} within "
                    f"{self._timeout_s} s; check that it was started with the same "
                    "init_method and world_size, or raise join_timeout_s"
                )
            if now_s >= remind_s:
                remind_s = now_s + _PATIENCE_S
                _log.warning(
                    "rank %s is still waiting for rank %s of %s, for %.0f s more",
                    self._rank,
                    names,
                    self._world_size,
                    self._deadline_s - now_s,
                )
            pause.wait(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)

    def _still_missing(self, kind: str, ranks: Iterable[int]) -> list[int]:
        return [r for r in ranks if not self._store.check([self._key(kind, r)])]

    def _raise_if_failed(self, ranks: Iterable[int]) -> None:
        for key in [self._key("failed", rank) for rank in ranks]:
            if self._store.check([key]):
                raw = self._store.get(key)[:_MAX_RECORD_NBYTES]
                reason = raw.decode(errors="replace")
                raise RendezvousError(f"the group did not come together: {reason}")

    def _read(self, rank: int) -> PeerRecord:
        fields = _parse(self._store.get(self._key("member", rank)), rank)
        world_size = fields.pop(_WORLD_SIZE)
        if world_size != self._world_size:
            raise RendezvousError(
                f"rank {self._rank} was told that the group has {self._world_size} "
                f"workers, rank {rank} that it has {world_size}"
            )
        return PeerRecord(**fields)


def _parse(raw: bytes, rank: int) -> dict[str, Any]:
    """Check a record from the store, which anyone may have written."""
    if len(raw) > _MAX_RECORD_NBYTES:
        raise RendezvousError(
            f"the record of rank {rank} has {len(raw)} bytes, more than "
            f"{_MAX_RECORD_NBYTES}"
        )
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RendezvousError(f"the record of rank {rank} is malformed") from error
    wanted = {**_FIELDS, _WORLD_SIZE: int}
    good = (
        isinstance(fields, dict)
        and fields.keys() == wanted.keys()
        and all(type(fields[name]) is kind for name, kind in wanted.items())
        and fields["rank"] == rank
        and 0 < fields["incarnation"] < 2**63
        and 0 < fields["pid"] < 2**31
        and fields["address"].isascii()
        and fields["name"].isascii()
        and fields["name"].isprintable()
    )
    if not good:
        raise RendezvousError(
            f"the record of rank {rank} is malformed: {str(fields)[:500]!r}"
        )
    return dict(fields)


def _require_distinct(records: list[PeerRecord], mine: PeerRecord) -> None:
    """Check the records against each other, and the own one against what we are."""
    if records[mine.rank] != mine:
        raise RendezvousError(f"the store changed the record of rank {mine.rank}")
    for field in ("name", "incarnation", "address"):
        seen: dict[object, int] = {}
        for record in records:
            other = seen.setdefault(getattr(record, field), record.rank)
            if other != record.rank:
                raise RendezvousError(
                    f"ranks {other} and {record.rank} have one {field} in the store"
                )


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn what torch's stores raise into errors of ours."""
    try:
        yield
    except RendezvousError:
        raise
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RendezvousError(f"the store of the group failed: {reason}") from error
