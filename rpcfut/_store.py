"""The c10d store in which the workers of a group meet.

Opening it is bounded in time and can be interrupted, which torch's constructors are
not: they wait in native code, for a folder that does not exist or for a server that is
none, longer than they were told.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol
from urllib.parse import SplitResult, urlsplit

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from rpcfut._errors import RendezvousError

if TYPE_CHECKING:
    from collections.abc import Callable


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

    def delete_key(self, key: str, /) -> bool:
        """Delete a key; whether there was one."""
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
    _require_types(init_method, rank, world_size)
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
    return _open(url, rank, world_size, timeout_s), rank, world_size


def _require_types(init_method: object, rank: object, world_size: object) -> None:
    if not isinstance(init_method, str):
        raise RendezvousError(f"init_method must be text, got {init_method!r}")
    for what, number in (("rank", rank), ("world_size", world_size)):
        if number is not None and type(number) is not int:
            raise RendezvousError(f"{what} must be an int, got {number!r}")


def _open(url: SplitResult, rank: int, world_size: int, timeout_s: float) -> Store:
    if url.scheme == "env" and world_size == 1 and "MASTER_ADDR" not in os.environ:
        return HashStore()  # a group of one meets nobody
    if url.scheme == "env":
        host = os.environ.get("MASTER_ADDR") or _missing_env("MASTER_ADDR")
        port = _from_env("MASTER_PORT", None)
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_server = rank == 0 and not hosted
        return _tcp_store(host, port, timeout_s, is_server=is_server)
    address = url.hostname, _port(url)
    if url.scheme == "tcp" and address[0] is not None and address[1] is not None:
        return _tcp_store(address[0], address[1], timeout_s, is_server=rank == 0)
    if url.scheme == "file" and url.path and not url.netloc:
        return _file_store(url.path, world_size, timeout_s)
    raise RendezvousError(
        "init_method must be 'env://', 'tcp://host:port' or 'file:///path', got "
        f"{url.geturl()!r}"
    )


def _port(url: SplitResult) -> int | None:
    try:
        return url.port
    except ValueError:
        return None


def _tcp_store(host: str, port: int, timeout_s: float, *, is_server: bool) -> Store:
    def connect() -> Store:
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]  # a name that torch makes at import
            host,
            port,
            None,
            is_server,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
        return store

    act = "listen at" if is_server else "reach rank 0's store at"
    return _within(timeout_s, connect, f"{act} {host}:{port}")


def _file_store(path: str, world_size: int, timeout_s: float) -> Store:
    folder = Path(path).parent
    if not folder.is_dir():
        raise RendezvousError(
            f"cannot meet in the file {path!r}: there is no folder {str(folder)!r}"
        )

    def make() -> Store:
        store: Store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]  # as above
        return store

    return _within(timeout_s, make, f"meet in the file {path!r}")


def _within(timeout_s: float, make: Callable[[], Store], act: str) -> Store:
    """Make a store on a thread of its own; it is left behind if it never returns."""
    made: list[Store] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="rpcfut-store", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if made:
        return made[0]
    if failed:
        reason = str(failed[0]).partition("\n")[0]
        raise RendezvousError(f"cannot {act}: {reason}") from failed[0]
    raise RendezvousError(
        f"cannot {act}: no answer within {timeout_s} s; does something else listen or "
        "lie there?"
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
