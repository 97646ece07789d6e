"""How the workers of a group find each other, over a torch c10d store.

Theory of operation. Each rank publishes a record and waits for those of all others;
then it makes their addresses known to its endpoint, publishes "ready", and waits until
all are
ready: from there on nobody meets a stranger. Names are claimed by compare-and-set. A
rank that cannot join publishes why, so that the others fail at once with its reason.

The store is open to anyone who can reach it, so what is read from it is hostile input:
records are size-checked and typed here, and addresses are checked again by the link.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, Protocol
from urllib.parse import urlsplit

import torch.distributed as dist

from rpcfut._errors import (
    DuplicateNameError,
    MissingWorkersError,
    RendezvousError,
)
from rpcfut_transport import PeerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rpcfut_transport import Clock

_MAX_RECORD_NBYTES = 4096
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
}


class Store(Protocol):
    """The part of a c10d store that is used here."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """Get a key, waiting for it."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key if it has the expected value, or is absent; return what it has."""
        ...


def open_store(
    init_method: str, rank: int | None, world_size: int | None, timeout_s: float
) -> tuple[Store, int, int]:
    """Open the store that an init method names.

    Args:
        init_method: ``env://`` (as torchrun sets it), ``tcp://host:port`` or
            ``file:///path``.
        rank: The own rank; by default taken from ``RANK`` for ``env://``.
        world_size: Size of the group; by default ``WORLD_SIZE`` for ``env://``.
        timeout_s: How long to wait for the store itself, in seconds.

    Returns:
        The store, the rank and the world size.

    Raises:
        RendezvousError: When something is not given, or the store cannot be reached.
    """
    url = urlsplit(init_method)
    if url.scheme == "env":
        rank = _from_env("RANK", "rank") if rank is None else rank
        if world_size is None:
            world_size = _from_env("WORLD_SIZE", "world_size")
    if rank is None or world_size is None:
        raise RendezvousError(
            f"init_method {init_method!r} says neither rank nor world size: pass "
            f"rank= and world_size=, got rank={rank!r} and world_size={world_size!r}"
        )
    if not 0 <= rank < world_size:
        raise RendezvousError(
            f"rank must be in [0, world_size), got {rank} and {world_size}"
        )
    match url.scheme:
        case "env":
            host = os.environ.get("MASTER_ADDR") or _missing_env("MASTER_ADDR")
            port = _from_env("MASTER_PORT", None)
            hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            store = _tcp_store(host, port, rank == 0 and not hosted, timeout_s)
        case "tcp" if url.hostname and url.port is not None:
            store = _tcp_store(url.hostname, url.port, rank == 0, timeout_s)
        case "file" if url.path:
            store = dist.FileStore(url.path, world_size)  # type: ignore[attr-defined]  # is there
        case _:
            raise RendezvousError(
                f"init_method must be 'env://', 'tcp://host:port' or 'file:///path', "
                f"got {init_method!r}"
            )
    return store, rank, world_size


def _tcp_store(host: str, port: int, is_server: bool, timeout_s: float) -> Store:  # noqa: FBT001
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]  # is there
            host,
            port,
            None,
            is_server,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (dist.DistError, RuntimeError) as error:
        act = "listen at" if is_server else "reach rank 0's store at"
        raise RendezvousError(
            f"cannot {act} {host}:{port} within {timeout_s} s: {error}"
        ) from error


def _from_env(variable: str, argument: str | None) -> int:
    text = os.environ.get(variable)
    if text is None:
        _missing_env(variable, argument)
    try:
        return int(text)
    except ValueError:
        raise RendezvousError(f"{variable} must be a number, got {text!r}") from None


def _missing_env(variable: str, argument: str | None = None) -> NoReturn:
    way = f", or pass {argument}=" if argument else ""
    raise RendezvousError(
        f"init_method 'env://' needs the environment variable {variable}; start the "
        f"script with torchrun{way}, or use 'tcp://host:port' or 'file:///path'"
    )


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

    def claim_name(self, name: str) -> None:
        """Claim the own name.

        Raises:
            DuplicateNameError: When another rank has it; the others are told.
        """
        mine = str(self._rank)
        key = f"{self._prefix}/name/{name}"
        owner = self._store.compare_set(key, "", mine).decode()
        if owner != mine:
            text = f"ranks {owner} and {mine} both want the name {name!r}"
            self.give_up(text)
            raise DuplicateNameError(f"{text}; give each worker a name of its own")

    def give_up(self, reason: str) -> None:
        """Tell the others why this rank does not join."""
        self._store.set(f"{self._prefix}/failed", f"rank {self._rank}: {reason}")

    def exchange(self, record: PeerRecord) -> list[PeerRecord]:
        """Publish the own record; return those of all ranks.

        Raises:
            MissingWorkersError: When some ranks did not publish theirs in time.
            RendezvousError: When a rank gave up, or a record is malformed.
        """
        fields = {name: getattr(record, name) for name in _FIELDS}
        self._store.set(self._key("member", self._rank), json.dumps(fields))
        self._wait_for("member", "did not come")
        return [self._read(rank) for rank in range(self._world_size)]

    def barrier(self) -> None:
        """Wait until all ranks are ready to be called.

        Raises:
            MissingWorkersError: When some are not in time.
            RendezvousError: When a rank gave up.
        """
        self._store.set(self._key("ready", self._rank), "1")
        self._wait_for("ready", "came, but did not get ready")

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _wait_for(self, kind: str, failure: str) -> None:
        missing = list(range(self._world_size))
        poll_s = _FIRST_POLL_S
        pause = threading.Event()  # never set: an interruptible sleep
        while True:
            missing = self._still_missing(kind, missing)
            if not missing:
                return
            self._raise_if_failed()
            if self._clock.now_s() >= self._deadline_s:
                names = ", ".join(map(str, missing))
                raise MissingWorkersError(
                    f"rank {names} of {self._world_size} {failure} within "
                    f"{self._timeout_s} s; check that it was started with the same "
                    "init_method and world_size, or raise join_timeout_s"
                )
            pause.wait(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)

    def _still_missing(self, kind: str, ranks: Iterable[int]) -> list[int]:
        return [r for r in ranks if not self._store.check([self._key(kind, r)])]

    def _raise_if_failed(self) -> None:
        key = f"{self._prefix}/failed"
        if self._store.check([key]):
            reason = self._store.get(key)[:_MAX_RECORD_NBYTES].decode(errors="replace")
            raise RendezvousError(f"the group did not come together: {reason}")

    def _read(self, rank: int) -> PeerRecord:
        raw = self._store.get(self._key("member", rank))
        if len(raw) > _MAX_RECORD_NBYTES:
            raise RendezvousError(
                f"the record of rank {rank} has {len(raw)} bytes, more than "
                f"{_MAX_RECORD_NBYTES}"
            )
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RendezvousError(f"the record of rank {rank} is malformed") from error
        good = (
            isinstance(fields, dict)
            and fields.keys() == _FIELDS.keys()
            and all(type(fields[name]) is kind for name, kind in _FIELDS.items())
            and fields["rank"] == rank
        )
        if not good:
            raise RendezvousError(
                f"the record of rank {rank} is malformed: {str(fields)[:500]!r}"
            )
        return PeerRecord(**fields)
