"""What workers run that are, or seem to be, on several hosts."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

import rpcfut
from rpcfut._process import current_agent
from rpcfut.transport import MonotonicClock
from tests.support import remote
from tests.support.hosts import enter

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

SECRET = "a secret of the tests, of more than 32 characters"
OTHER = "another secret, which has more than 32 characters, too"
PLAIN = b"what two workers say to each other, and nobody else should know. "
_executed: list[str] = []


@rpcfut.expose
def execute(what: str) -> str:
    """Leave a trace in the process that runs this."""
    _executed.append(what)
    return what


@rpcfut.expose
def executed() -> list[str]:
    return _executed


@rpcfut.expose
def address_here() -> tuple[str, str]:
    record = current_agent().record
    return record.tcp_address, record.public_key


def _name(rank: int) -> str:
    return f"w{rank}"


def error_of_joining(
    rank: int | None, count: int | None, init_method: str, **options: Any
) -> Any:
    """Join and leave; how that ended, how long it took, and all that was logged."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    clock = MonotonicClock()
    start_s = clock.now_s()
    try:
        rpcfut.init_rpc(
            _name(-1 if rank is None else rank),
            rank,
            count,
            init_method=init_method,
            join_timeout_s=20,
            **options,
        )
    except (rpcfut.RpcError, ValueError) as error:
        seen = f"{type(error).__name__}: {error}"
    else:
        rpcfut.shutdown(timeout=20)
        seen = "left"
    return seen, clock.now_s() - start_s, "\n".join(records)


def join_with(rank: int, count: int, rendezvous: str, secrets: list[str | None]) -> Any:
    """Join, each with a secret of its own."""
    return error_of_joining(rank, count, rendezvous, secret=secrets[rank])


def try_to_join_with(secret: str | None, rendezvous: str) -> Any:
    """Join an open group."""
    return error_of_joining(None, None, rendezvous, secret=secret)


def join_by_environment(
    rank: int, count: int, rendezvous: str, variables: list[dict[str, str]]
) -> Any:
    """Join, each with variables of its own."""
    os.environ.update(variables[rank])
    return error_of_joining(rank, count, rendezvous)


def by_tcp(function: Callable[..., Any], *args: Any) -> Any:
    """Run what is written for one host as if each process were on its own."""
    os.environ.update({"RPCFUT_TCP_ONLY": "1", "RPCFUT_SECRET": SECRET})
    return function(*args)


def call_peers_by_tcp(rank: int, count: int, rendezvous: str, interface: str) -> Any:
    """Call everything, by TCP although all are on this host."""
    real = rpcfut.init_rpc

    def init_rpc(*args: Any, **options: Any) -> None:
        real(*args, interface=interface, **options)

    remote.rpcfut.init_rpc = init_rpc  # type: ignore[assignment]
    return by_tcp(remote.call_peers, rank, count, rendezvous)


def be_a_host(
    rank: int,
    count: int,
    rendezvous: str,
    names: tuple[str, ...],
    init_method: str,
    options: dict[str, Any],
) -> Any:
    """Be on a host of one's own; call the others and oneself."""
    del rendezvous
    hosts = options.pop("hosts", None)
    enter(names[rank], None if hosts is None else hosts[rank], f"node{rank}")
    try:
        rpcfut.init_rpc(
            _name(rank),
            rank,
            count,
            init_method=init_method,
            join_timeout_s=options.pop("join_timeout_s", 20),
            **options,
        )
    except (rpcfut.RpcError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    big = PLAIN * 30_000
    try:
        for other in range(count):
            assert rpcfut.rpc_sync(other, remote.echo, args=(big,), timeout=20) == big
            assert rpcfut.rpc_sync(other, remote.add, args=(1,), timeout=20) == 2
        return rpcfut.rpc_sync((rank + 1) % count, address_here)
    finally:
        rpcfut.shutdown(timeout=20)


def serve_until_told(rank: int, count: int, rendezvous: str, pipe: Connection) -> Any:
    """Be alone in a group that others could join; say where; serve until told."""
    del rank, count
    os.environ["RPCFUT_SECRET"] = SECRET
    rpcfut.init_rpc("w0", 0, 1, init_method=rendezvous, interface="127.0.0.1")
    record = current_agent().record
    pipe.send(
        (record.address, record.tcp_address, record.public_key, record.incarnation)
    )
    assert pipe.poll(60)
    pipe.recv()
    alive = rpcfut.rpc_sync("w0", execute, args=("mine",))
    rpcfut.shutdown(timeout=20)
    return alive, _executed


def join_as_user(
    rank: int,
    count: int,
    _: str,
    init_method: str,
    user: int,
    secret: str | None = None,
) -> Any:
    """Join, rank 1 as another user with folders of its own."""
    # Once as ourselves: the other user may not be let to Python's modules.
    rpcfut.init_rpc("w", 0, 1)
    rpcfut.shutdown()
    assert "x".encode("idna") == b"x"  # for host names
    if rank == 1:
        os.environ.pop("TMPDIR", None)
        tempfile.tempdir = tempfile.mkdtemp(prefix="rf-u-", dir="/tmp")
        os.chown(tempfile.tempdir, user, user)
        os.setgid(user)
        os.setuid(user)
    seen = error_of_joining(rank, count, init_method, secret=secret)
    if rank == 1:
        os.rmdir(tempfile.gettempdir())
    return seen
