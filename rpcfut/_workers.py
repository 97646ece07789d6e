"""Who belongs to the group."""

from __future__ import annotations

import difflib
import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rpcfut._errors import UnknownWorkerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_GONE = 1000
_MAX_LISTED = 30


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker: its name and its rank, both unique in the group."""

    name: str
    rank: int


Worker: TypeAlias = str | int | WorkerInfo  # by its name, its rank or its info


class WorkerTable:
    """The workers of a group, by name and by rank. Any thread.

    Those that left or were lost are still found, so that a call to one says what became
    of it; of these the last thousand. Iterating yields the others, by rank.

    Args:
        workers: The first workers, the own one included.
    """

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self._lock = threading.Lock()
        self._by_rank: dict[int, WorkerInfo] = {}
        self._by_name: dict[str, WorkerInfo] = {}
        self._gone: dict[int, None] = {}  # ranks, the first that went first
        for worker in workers:
            self.add(worker)

    def __repr__(self) -> str:
        return f"<WorkerTable {sorted(w.name for w in self)}>"

    def __iter__(self) -> Iterator[WorkerInfo]:
        with self._lock:
            ranks = sorted(self._by_rank.keys() - self._gone.keys())
            return iter([self._by_rank[rank] for rank in ranks])

    def add(self, worker: WorkerInfo) -> None:
        """Add a worker, which may take the rank or the name of one that is gone."""
        with self._lock:
            self._gone.pop(worker.rank, None)
            self._by_rank[worker.rank] = worker
            self._by_name[worker.name] = worker

    def remove(self, worker: WorkerInfo) -> None:
        """Take note that a worker is gone."""
        with self._lock:
            if self._by_rank.get(worker.rank) != worker:
                return
            self._gone[worker.rank] = None
            for rank in self._oldest_locked():
                del self._gone[rank]
                gone = self._by_rank.pop(rank)
                if self._by_name.get(gone.name) == gone:
                    del self._by_name[gone.name]

    def _oldest_locked(self) -> list[int]:
        return list(itertools.islice(self._gone, max(len(self._gone) - _MAX_GONE, 0)))

    def name_of(self, rank: int) -> str:
        """The name of the worker of a rank that exists."""
        return self._by_rank[rank].name

    def find(self, to: Worker) -> WorkerInfo:
        """The worker of a name, a rank or an info.

        Raises:
            UnknownWorkerError: When there is none; the message lists the known ones.
        """
        if type(to) is str:  # nearly always
            named = self._by_name.get(to)
            if named is not None:
                return named
        if not isinstance(to, (str, int, WorkerInfo)) or isinstance(to, bool):
            raise UnknownWorkerError(
                f"a worker is a name, a rank or a WorkerInfo, got {to!r}"
            )
        found = self._lookup(to)
        if found is None:
            raise UnknownWorkerError(self._describe_unknown(to))
        return found

    def _lookup(self, to: Worker) -> WorkerInfo | None:
        # Without the lock: this is on the way of each call, and one look at a dict.
        if isinstance(to, str):
            return self._by_name.get(to)
        if isinstance(to, WorkerInfo):
            found = self._by_rank.get(to.rank)
            return found if found == to else None
        return self._by_rank.get(to)

    def _describe_unknown(self, to: Worker) -> str:
        present = list(self)
        known = [f"{w.name!r} (rank {w.rank})" for w in present[:_MAX_LISTED]]
        if len(present) > _MAX_LISTED:
            known.append(f"and {len(present) - _MAX_LISTED} more")
        text = f"no worker {to!r} in this group; known: {', '.join(known)}"
        name = to.name if isinstance(to, WorkerInfo) else to
        if isinstance(name, str):
            close = difflib.get_close_matches(name, [w.name for w in present], 1)
            text += f"; did you mean {close[0]!r}?" if close else ""
        return text
