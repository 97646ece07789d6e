"""A store without a server of its own: each member keeps what it published.

Theory of operation. Each rank serves a small c10d store at an address that all were
told before. A key that ends in a rank lies with that rank. Any other is written by
whoever says it to its own store, and looked for in all of them. Nobody waits for a
store here: one that does not answer yet has no keys, so the rendezvous looks again.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rpcfut._store import Store

_PROBE_S = 1.0


class MemberStores:
    """A c10d store that is spread over its members. Owner thread.

    Args:
        own: The own store.
        rank: The own rank.
        addresses: Where the store of each rank is served.
        reach: Connects to the store of an address that was seen to answer.
    """

    def __init__(
        self,
        own: Store,
        rank: int,
        addresses: list[tuple[str, int]],
        reach: Callable[[str, int], Store],
    ) -> None:
        self._rank = rank
        self._addresses = addresses
        self._reach = reach
        self._stores = {rank: own}

    def set(self, key: str, value: str, /) -> None:
        """Set a key that lies with this rank, or with nobody."""
        self._stores[self._rank].set(key, value)

    def get(self, key: str, /) -> bytes:
        """Get a key that exists.

        Raises:
            RuntimeError: When it does not.
        """
        for rank in self._owners(key):
            with suppress(RuntimeError):
                store = self._store_of(rank)
                if store is not None and store.check([key]):
                    return store.get(key)
        raise RuntimeError(f"no member has the key {key!r} (any more)")

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Get keys that exist."""
        return [self.get(key) for key in keys]

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist, as far as their owners answer."""
        return all(self._has(key) for key in keys)

    def delete_key(self, key: str, /) -> bool:
        """Delete an own key; whether there was one."""
        return self._stores[self._rank].delete_key(key)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set an own key if it has the expected value, or is absent."""
        return self._stores[self._rank].compare_set(key, expected, desired)

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter of our own."""
        return self._stores[self._rank].add(key, amount)

    def _has(self, key: str) -> bool:
        for rank in self._owners(key):
            store = self._store_of(rank)
            try:
                if store is not None and store.check([key]):
                    return True
            except RuntimeError:
                if rank == self._rank:
                    raise
                del self._stores[rank]  # its process ended; another may come
        return False

    def _owners(self, key: str) -> Iterable[int]:
        last = key.rpartition("/")[2]
        is_rank = last.isdigit() and int(last) < len(self._addresses)
        return (int(last),) if is_rank else range(len(self._addresses))

    def _store_of(self, rank: int) -> Store | None:
        if rank not in self._stores:
            host, port = self._addresses[rank]
            try:
                # torch says a lot when it cannot reach a store.
                socket.create_connection((host, port), _PROBE_S).close()
                self._stores[rank] = self._reach(host, port)
            except (OSError, RuntimeError):
                return None
        return self._stores[rank]
