"""How workers find a group that has no fixed size, over a torch c10d store.

Theory of operation. Who joins takes the next number as its rank, claims its name,
publishes its record under its rank, and then reads those of all others: of two that
join at once, one at least finds the other. The rest goes by messages (`Membership`).
A rank is never given again; a name is, once whoever had it left, or ended, or does not
answer. Who leaves empties its record.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from rpcfut._errors import DuplicateNameError, RendezvousError
from rpcfut._records import OPEN, RecordForm
from rpcfut._rendezvous import store_errors

if TYPE_CHECKING:
    from rpcfut._secret import Signer
    from rpcfut._store import Store
    from rpcfut_transport import PeerRecord

_log = logging.getLogger("rpcfut.rendezvous")
_MAX_RANKS = 1 << 20
_MAX_DIGITS = 8
_BLOCK = 1000  # records that are asked for in one message


class OpenGroup:
    """One joining of the open group of a store. Owner thread.

    Args:
        store: Where the workers meet.
        prefix: What its keys start with.
        signer: Signs the own record, and knows those of the group.
    """

    def __init__(
        self, store: Store, *, prefix: str, signer: Signer | None = None
    ) -> None:
        self.form = RecordForm(OPEN, signer)
        self.rank = -1
        self._store = store
        self._prefix = f"{prefix}/open"
        self._name = ""
        self._earlier_owner: str | None = None  # of the name, if it may be alive

    def claim(self, name: str, me: PeerRecord) -> None:
        """Take a rank, and claim the own name.

        Args:
            name: The name.
            me: This process, for comparison with whoever has the name.

        Raises:
            AuthenticationError: When the first members had another secret.
            DuplicateNameError: When a worker that is alive has the name.
            RendezvousError: When the store fails.
        """
        with store_errors():
            self._compare_secrets()
            self.rank = self._store.add(f"{self._prefix}/joined", 1) - 1
            if not 0 <= self.rank < _MAX_RANKS:
                raise RendezvousError(f"the store gave out the rank {self.rank}")
            mine, owner = str(self.rank), ""
            while (found := self._swap_name(name, owner, mine)) != mine:
                if found == owner:
                    break  # cannot be: the store lost the name meanwhile
                owner = found
                self._require_gone(name, owner, me)
        self._name = name

    def exchange(self, record: PeerRecord) -> list[PeerRecord]:
        """Publish the own record; return it and those of all other members.

        Raises:
            RendezvousError: When a record is malformed, or the store fails.
        """
        with store_errors():
            self._store.set(self._key(self.rank), self.form.write(record))
            count = self._store.add(f"{self._prefix}/joined", 0)
            if not self.rank < count <= _MAX_RANKS:
                raise RendezvousError(f"the store says that {count} workers joined")
            return [
                self.form.read(raw, rank)
                for rank, raw in self._read_all(count).items()
                if raw
            ]

    def is_published(self, record: PeerRecord) -> bool:
        """Whether a record still is what the store says of its rank.

        Raises:
            RendezvousError: When the store fails.
        """
        with store_errors():
            raw = self._store.get(self._key(record.rank))
            return bool(raw) and self.form.read(raw, record.rank) == record

    def give_up(self, reason: str) -> None:
        """Nobody waits for a worker of an open group."""

    def withdraw(self) -> None:
        """Take back what was published."""
        with suppress(RendezvousError):  # a store that is gone keeps nothing
            self.leave()

    def leave(self) -> None:
        """Take back the record and the name."""
        with store_errors():
            if self.rank >= 0:
                self._store.set(self._key(self.rank), "")
            key = f"{self._prefix}/name/{self._name}"
            if self._name and self._store.get(key) == str(self.rank).encode():
                self._store.set(key, self._earlier_owner or "")

    def _compare_secrets(self) -> None:
        """Find out whether the own secret is that of whoever came first."""
        mine = self.form.signer.prove()
        proof = self._store.compare_set(f"{self._prefix}/proof", "", mine)
        self.form.signer.compare(proof, mine="this worker", theirs="the first member")

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/member/{rank}"

    def _swap_name(self, name: str, owner: str, mine: str) -> str:
        key = f"{self._prefix}/name/{name}"
        found = self._store.compare_set(key, owner, mine)
        return found.decode(errors="replace")

    def _require_gone(self, name: str, owner: str, me: PeerRecord) -> None:
        """Check that the owner of a name may be gone; its members know better."""
        self._earlier_owner = None
        if not (owner.isdigit() and len(owner) < _MAX_DIGITS):
            return
        key = self._key(int(owner))
        raw = self._store.get(key) if self._store.check([key]) else b""
        if not raw:
            return  # it left, or never got as far
        record = self.form.read(raw, int(owner))
        if me.sees_end_of(record):
            return
        if me.sees_pids_of(record):
            raise DuplicateNameError(
                f"worker {name!r} is a member already, as rank {owner} in process "
                f"{record.pid}; give each worker a name of its own"
            )
        self._earlier_owner = owner

    def _read_all(self, count: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for first in range(0, count, _BLOCK):
            ranks = range(first, min(first + _BLOCK, count))
            keys = [self._key(rank) for rank in ranks]
            if self._store.check(keys):
                found.update(zip(ranks, self._store.multi_get(keys), strict=True))
                continue
            for rank, key in zip(ranks, keys, strict=True):
                if self._store.check([key]):  # who has a rank only will find us
                    found[rank] = self._store.get(key)
        return found
