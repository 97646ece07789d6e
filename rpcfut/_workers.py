"""Who belongs to the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rpcfut._errors import UnknownWorkerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker: its name and its rank, both unique in the group."""

    name: str
    rank: int


Worker: TypeAlias = str | int | WorkerInfo  # by its name, its rank or its info


class WorkerTable:
    """The workers of a group, by name and by rank. Does not change after it was made.

    Args:
        workers: All workers, the own one included.
    """

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self._by_rank = {w.rank: w for w in sorted(workers, key=lambda w: w.rank)}
        self._by_name = {w.name: w for w in self._by_rank.values()}

    def __repr__(self) -> str:
        return f"<WorkerTable {sorted(self._by_name)}>"

    def __iter__(self) -> Iterator[WorkerInfo]:
        return iter(self._by_rank.values())

    def name_of(self, rank: int) -> str:
        """The name of the worker of a rank that exists."""
        return self._by_rank[rank].name

    def find(self, to: Worker) -> WorkerInfo:
        """The worker of a name, a rank or an info.

        Raises:
            UnknownWorkerError: When there is none; the message lists the known ones.
        """
        if not isinstance(to, (str, int, WorkerInfo)) or isinstance(to, bool):
            raise UnknownWorkerError(
                f"a worker is a name, a rank or a WorkerInfo, got {to!r}"
            )
        found = self._lookup(to)
        if found is None:
            known = ", ".join(f"{w.name!r} (rank {w.rank})" for w in self)
            raise UnknownWorkerError(f"no worker {to!r} in this group; known: {known}")
        return found

    def _lookup(self, to: Worker) -> WorkerInfo | None:
        if isinstance(to, str):
            return self._by_name.get(to)
        if isinstance(to, WorkerInfo):
            found = self._by_name.get(to.name)
            return found if found == to else None
        return self._by_rank.get(to)
