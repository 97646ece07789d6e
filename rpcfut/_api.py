"""The process's own agent, and the functions that users call.

This module holds the one agent of `init_rpc` and the table of functions that `expose`
fills; both are process-wide and guarded by a lock. Everything else takes an agent.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rpcfut._agent import Agent, AgentOptions
from rpcfut._errors import LifecycleError, RendezvousError
from rpcfut._exposed import ExposedTable
from rpcfut._rendezvous import Rendezvous
from rpcfut._store import open_store
from rpcfut_transport import (
    MonotonicClock,
    TransportError,
    ZmqLink,
    describe_this_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rpcfut._agent import Workers
    from rpcfut._future import Future
    from rpcfut._workers import Worker, WorkerInfo

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")
_log = logging.getLogger("rpcfut.api")

_MAX_NAME = 128


@dataclass(slots=True)
class _Process:
    """What this process has: one agent at most, and what it exposes."""

    exposed: ExposedTable = field(default_factory=ExposedTable)
    agent: Agent | None = None
    is_joining: bool = False
    groups: int = 0  # how often this process met others; each group has its own keys


_lock = threading.Lock()
_process = _Process()


@contextmanager
def isolated_process() -> Iterator[None]:
    """Give a test its own agent slot and exposed functions."""
    global _process
    with _lock:
        saved, _process = _process, _Process()
    try:
        yield
    finally:
        with _lock:
            mine, _process = _process, saved
        if mine.agent is not None:
            mine.agent.close()


def init_rpc(  # noqa: PLR0913 - the options of a job, all by name
    name: str,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    init_method: str = "env://",
    timeout_s: float | None = None,
    join_timeout_s: float = 300.0,
    max_threads: int = 256,
    expose: Iterable[str] = (),
) -> None:
    """Join the group, and return when all its workers can be called.

    Args:
        name: This worker's name, unique in the group: letters, digits and ``_ - : .``.
        rank: This worker's rank; for ``env://`` taken from ``RANK`` if not given.
        world_size: Size of the group; for ``env://`` taken from ``WORLD_SIZE``.
        init_method: Where the workers meet: ``env://`` (as torchrun sets it),
            ``tcp://host:port`` (rank 0 listens there) or ``file:///path`` (a file that
            does not exist yet).
        timeout_s: Deadline of calls that name none, in seconds. By default there is
            none: first calls compile kernels, and a lost peer is noticed without it.
        join_timeout_s: How long to wait for the other workers, in seconds.
        max_threads: How many threads may serve calls, waiting ones included.
        expose: What peers may call besides what `rpcfut.expose` lets them: paths that
            are imported here. ``"module:function"`` is one function; ``"module"`` all
            that it defines at its top level, unless their names start with an
            underscore; ``"package.*"`` the same for the package and all modules below
            it that are imported here, now or later.

    Raises:
        FunctionRefusedError: When one of `expose` does not exist.
        LifecycleError: When this process has joined already.
        MissingWorkersError: When some ranks did not come in time; names them.
        DuplicateNameError: When another rank has the name; names both.
        RendezvousError: When the group does not come together for another reason.
        ValueError: When the name is not usable.
    """
    _check_name(name)
    options = AgentOptions(timeout_s=timeout_s, max_threads=max_threads)
    if not join_timeout_s > 0:
        raise ValueError(f"join_timeout_s must be positive, got {join_timeout_s!r}")
    process = _process
    if isinstance(expose, str):
        raise TypeError(f"expose= wants a list of paths; write expose=[{expose!r}]")
    for path in expose:
        process.exposed.expose_path(path)
    with _lock:
        if process.agent is not None or process.is_joining:
            known = process.agent.info.name if process.agent is not None else "joining"
            raise LifecycleError(
                f"this process has joined already ({known!r}); "
                "call rpcfut.shutdown() first"
            )
        process.is_joining = True
    try:
        store, rank, world_size = open_store(
            init_method, rank, world_size, join_timeout_s
        )
        rendezvous = Rendezvous(
            store,
            prefix=f"rpcfut/{process.groups}",
            rank=rank,
            world_size=world_size,
            clock=MonotonicClock(),
            timeout_s=join_timeout_s,
        )
        _join(name, rank, rendezvous, process, options)
        # Rank 0 may be the store's server, and others may still be reading from it.
        current_agent().store = store
        process.groups += 1  # a try that failed is tried again under the same keys
    finally:
        process.is_joining = False


def _join(
    name: str,
    rank: int,
    rendezvous: Rendezvous,
    process: _Process,
    options: AgentOptions,
) -> None:
    """Join, or leave nothing behind: no socket, no record, nobody who waits for us."""
    with ExitStack() as undo:
        undo.callback(rendezvous.withdraw)
        try:
            rendezvous.claim_name(name)
            link = ZmqLink()
            undo.callback(link.close)
            record = describe_this_process(
                rank=rank,
                name=name,
                incarnation=secrets.randbits(62) + 1,
                address=link.address,
            )
            agent = Agent(record, link, process.exposed, options=options)
            undo.callback(agent.close)
            agent.start(rendezvous.exchange(record))
            # Peers that are ready a moment earlier call at once, and what they call
            # may call on.
            process.agent = agent
            undo.callback(setattr, process, "agent", None)
            rendezvous.barrier(lambda: agent.lost)
        except TransportError as error:
            rendezvous.give_up(str(error))
            raise RendezvousError(f"worker {name!r} cannot join: {error}") from error
        except RendezvousError:
            raise  # the others see the same, or were told
        except BaseException as error:
            rendezvous.give_up(repr(error))
            raise
        undo.pop_all()
    _log.info("worker %r joined as rank %s: %r", name, rank, agent.workers)


def _check_name(name: str) -> None:
    good = (
        isinstance(name, str)
        and 0 < len(name) <= _MAX_NAME
        and all(c.isascii() and (c.isalnum() or c in "_-:.") for c in name)
    )
    if not good:
        raise ValueError(
            f"a worker's name has 1 to {_MAX_NAME} letters, digits or '_-:.', "
            f"got {name!r}"
        )


def current_agent() -> Agent:
    """The agent that init_rpc made.

    Raises:
        LifecycleError: Before init_rpc and after shutdown.
    """
    agent = _process.agent
    if agent is None:
        raise LifecycleError(
            "this process belongs to no group: call rpcfut.init_rpc(name, rank, "
            "world_size) before calling workers, and rpcfut.shutdown() after the last "
            "call"
        )
    return agent


@overload
def rpc_async(
    to: Worker,
    func: str | Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Future[T]: ...


@overload
def rpc_async(
    to: Workers,
    func: str | Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[Future[T]]: ...


def rpc_async(
    to: Worker | Workers,
    func: str | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Any:
    """Call a function on another worker, on this one, or on many; return at once.

    The arguments are tied to the streams that are current here, now: afterwards host
    arguments may be overwritten at once, and device arguments in stream order (STR-8).

    Args:
        to: The worker's name, rank or info; or a list or tuple of these. For many the
            arguments are encoded and copied from their device once.
        func: A function that the worker exposes, or its name.
        args: Positional arguments.
        kwargs: Keyword arguments.
        timeout: Deadline of the call in seconds; default: that of init_rpc.

    Returns:
        A future of what the function returns; for many a list of futures, in the order
        of `to`. It fails with the function's own error, or with `RemoteError` where
        that exists only over there, `RpcTimeoutError`, `PeerLostError` or
        `NotExposedError`.

    Raises:
        LifecycleError: Before init_rpc or after shutdown.
        UnknownWorkerError: When there is no such worker; nothing is sent to any.
        FunctionRefusedError: When `func` is a lambda, local or bound.
        CallRefusedError: When `args` is no tuple or list, or `timeout` is negative.
        EncodeError: When an argument cannot travel.
        ExtractionError: When an argument holds a type that nobody knows.
    """
    agent: Any = current_agent()  # its overloads are these
    return agent.rpc_async(to, func, args, kwargs, timeout=timeout)


@overload
def rpc_sync(
    to: Worker,
    func: str | Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> T: ...


@overload
def rpc_sync(
    to: Workers,
    func: str | Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[T]: ...


def rpc_sync(
    to: Worker | Workers,
    func: str | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Any:
    """Call a function on another worker, or on many, and wait for what it returns.

    Arguments as for `rpc_async`.

    Returns:
        The value; for many the list of values, in the order of `to`. The streams that
        are current here wait for the device work behind it; the host does not, except
        for pinned host memory.

    Raises:
        Exception: As `rpc_async` does, and what its future would fail with; for many
            the first failure, at once, and the other calls are cancelled.
        PoolExhaustedError: When called on a pool thread and no other may start.
    """
    agent: Any = current_agent()
    return agent.rpc_sync(to, func, args, kwargs, timeout=timeout)


@overload
def expose(
    func: F, *, name: str | None = None, ordered: bool = True, serial: bool = False
) -> F: ...


@overload
def expose(
    func: None = None,
    *,
    name: str | None = None,
    ordered: bool = True,
    serial: bool = False,
) -> Callable[[F], F]: ...


def expose(
    func: F | None = None,
    *,
    name: str | None = None,
    ordered: bool = True,
    serial: bool = False,
) -> Any:
    """Let peers call a function: ``@expose``, ``@expose(name="add")`` or a plain call.

    It runs on streams of its own, behind what is queued here, now, on the streams that
    are current (STR-9).

    Args:
        func: A function at the top level of a module, or any callable if named.
        name: What peers call it by, instead of ``module:qualname``.
        ordered: Whether its work on a device comes after that of every call that this
            worker had answered before, and before that of calls made after this one
            was seen to complete (STR-13). False for functions that only read, and for
            those that launch collectives.
        serial: Whether its calls run one at a time, in the order in which they came; an
            `async def`, or one that returns a future, until that has ended. Calls that
            wait for their turn take no thread.

    Returns:
        The function itself.

    Raises:
        FunctionRefusedError: When no peer could name it.
        ValueError: When another function has that name.
    """
    return _process.exposed.expose(func, name=name, ordered=ordered, serial=serial)


def expose_torch(*names: str) -> None:
    """Let peers call functions of torch: ``expose_torch("add", "linalg.norm")``.

    A peer passes the function itself, ``torch.add``, or its name, ``"torch:add"``.

    Args:
        names: Names below ``torch`` of functions that compute on tensors.

    Raises:
        FunctionRefusedError: When one is not such a function, `torch.load` for one;
            none is exposed then.
    """
    _process.exposed.expose_torch(*names)


def get_worker_info(name: str | int | None = None) -> WorkerInfo:
    """The worker of a name or rank; without one, this worker.

    Raises:
        LifecycleError: Before init_rpc or after shutdown.
        UnknownWorkerError: When there is no such worker.
    """
    agent = current_agent()
    return agent.info if name is None else agent.workers.find(name)


def shutdown(graceful: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - torch's signature
    """Leave the group. Does nothing if there is none; may be repeated.

    Args:
        graceful: Wait until this worker's calls are answered and all others are ready
            to leave too. Calls are served meanwhile.
        timeout: How long to wait for that, in seconds; then it leaves anyway, with a
            warning. None waits as long as the others live.
    """
    agent = _process.agent
    if agent is None:
        return
    try:
        agent.shutdown(graceful=graceful, timeout=timeout)
    finally:
        with _lock:
            if _process.agent is agent:
                agent.close()
                _process.agent = None
