"""What `init_method` says: where a worker meets the others, and as whom."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

from torch._C._distributed_c10d import HashStore

from rpcfut._errors import RendezvousError
from rpcfut._member_stores import MemberStores
from rpcfut._store import Store, file_store, meet_at, reach_store, serve_store

_REACH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPlace:
    """Where a worker meets the others, and as whom.

    Args:
        store: Where they meet.
        prefix: What their keys start with.
        rank: The own rank; None where it is given when joining.
        world_size: Size of the group; None if it has no fixed one.
    """

    store: Store
    prefix: str
    rank: int | None
    world_size: int | None


def open_meeting_place(
    init_method: str, rank: int | None, world_size: int | None, timeout_s: float
) -> MeetingPlace:
    """Open the store that an init method names.

    Args:
        init_method: ``env://`` (as torchrun sets it), ``tcp://host:port``,
            ``file:///path`` or ``peers://host:port,host:port``.
        rank: The own rank; by default taken from ``RANK`` for ``env://``.
        world_size: Size of the group; by default ``WORLD_SIZE`` for ``env://``. With
            neither, the group has no fixed size.
        timeout_s: How long to wait for the store itself, in seconds.

    Raises:
        RendezvousError: When something is not given, or the store cannot be reached.
    """
    _require_types(init_method, rank, world_size)
    url = urlsplit(init_method)
    prefix = "rpcfut"
    if url.scheme == "env":
        rank, world_size = _who_by_env(rank, world_size)
        # torchrun starts all workers again, with the same store.
        prefix += f"/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if url.scheme == "peers":
        return _meet_peers(url, prefix, rank, world_size, timeout_s)
    if (rank is None) != (world_size is None):
        raise RendezvousError(
            f"init_method {init_method!r} says neither rank nor world size: pass "
            "rank= and world_size=, or none of them for a group without a fixed size, "
            f"got rank={rank!r} and world_size={world_size!r}"
        )
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise RendezvousError(
            f"rank must be in [0, world_size), got {rank} and {world_size}"
        )
    store = _open(url, rank, world_size, timeout_s)
    return MeetingPlace(store=store, prefix=prefix, rank=rank, world_size=world_size)


def _require_types(init_method: object, rank: object, world_size: object) -> None:
    if not isinstance(init_method, str):
        raise RendezvousError(f"init_method must be text, got {init_method!r}")
    for what, number in (("rank", rank), ("world_size", world_size)):
        if number is not None and type(number) is not int:
            raise RendezvousError(f"{what} must be an int, got {number!r}")


def _who_by_env(
    rank: int | None, world_size: int | None
) -> tuple[int | None, int | None]:
    is_open = rank is None and world_size is None and "MASTER_ADDR" in os.environ
    if is_open and not {"RANK", "WORLD_SIZE"} & os.environ.keys():
        return None, None
    rank = _from_env("RANK", "rank") if rank is None else rank
    if world_size is None:
        world_size = _from_env("WORLD_SIZE", "world_size")
    return rank, world_size


def _open(
    url: SplitResult, rank: int | None, world_size: int | None, timeout_s: float
) -> Store:
    if url.scheme == "env" and world_size == 1 and "MASTER_ADDR" not in os.environ:
        return HashStore()  # a group of one meets nobody
    if url.scheme == "env":
        host = os.environ.get("MASTER_ADDR") or _missing_env("MASTER_ADDR")
        port = _from_env("MASTER_PORT", None)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return reach_store(host, port, timeout_s)
        return meet_at(host, port, rank, timeout_s)
    address = url.hostname, _port(url)
    if url.scheme == "tcp" and address[0] is not None and address[1] is not None:
        return meet_at(address[0], address[1], rank, timeout_s)
    if url.scheme == "file" and url.path and not url.netloc:
        return file_store(url.path, timeout_s)
    raise RendezvousError(
        "init_method must be 'env://', 'tcp://host:port', 'file:///path' or "
        f"'peers://host:port,host:port', got {url.geturl()!r}"
    )


def _port(url: SplitResult) -> int | None:
    try:
        return url.port
    except ValueError:
        return None


def _meet_peers(
    url: SplitResult,
    prefix: str,
    rank: int | None,
    world_size: int | None,
    timeout_s: float,
) -> MeetingPlace:
    parts = [urlsplit(f"//{part}") for part in url.netloc.split(",")]
    addresses = [
        (part.hostname, port)
        for part in parts
        if part.hostname and (port := _port(part))
    ]
    if len(addresses) < len(parts) or len(set(addresses)) < len(parts):
        raise RendezvousError(
            "init_method 'peers://' must list host:port of each rank, all different, "
            f"got {url.geturl()!r}"
        )
    if rank is None or not 0 <= rank < len(addresses):
        raise RendezvousError(
            f"init_method {url.geturl()!r} lists {len(addresses)} workers: pass rank=, "
            f"the place of this one in it counted from 0, got {rank!r}"
        )
    if world_size not in {None, len(addresses)}:
        raise RendezvousError(
            f"init_method {url.geturl()!r} lists {len(addresses)} workers, but "
            f"world_size is {world_size}"
        )
    own = serve_store(*addresses[rank], timeout_s)
    store = MemberStores(
        own, rank, addresses, lambda host, port: reach_store(host, port, _REACH_S)
    )
    return MeetingPlace(
        store=store, prefix=prefix, rank=rank, world_size=len(addresses)
    )


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
