"""The functions that users call: they speak for the process's own agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from rpcfut._process import current_agent, this_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from rpcfut._agent import Workers
    from rpcfut._future import Future
    from rpcfut._watching import Watch, WorkerEvent
    from rpcfut._workers import Worker, WorkerInfo

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


@overload
def rpc_async(
    to: Worker,
    func: Callable[..., Awaitable[T]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Future[T]: ...


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
    func: Callable[..., Awaitable[T]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[Future[T]]: ...


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
    func: Callable[..., Awaitable[T]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> T: ...


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
    func: Callable[..., Awaitable[T]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[T]: ...


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
    return this_process().exposed.expose(
        func, name=name, ordered=ordered, serial=serial
    )


def expose_torch(*names: str) -> None:
    """Let peers call functions of torch: ``expose_torch("add", "linalg.norm")``.

    A peer passes the function itself, ``torch.add``, or its name, ``"torch:add"``.

    Args:
        names: Names below ``torch`` of functions that compute on tensors.

    Raises:
        FunctionRefusedError: When one is not such a function, `torch.load` for one;
            none is exposed then.
    """
    this_process().exposed.expose_torch(*names)


def get_worker_info(name: str | int | None = None) -> WorkerInfo:
    """The worker of a name or rank; without one, this worker.

    Raises:
        LifecycleError: Before init_rpc or after shutdown.
        UnknownWorkerError: When there is no such worker.
    """
    agent = current_agent()
    return agent.info if name is None else agent.workers.find(name)


def get_worker_infos() -> list[WorkerInfo]:
    """The workers that are in the group now, this one included, by rank.

    Raises:
        LifecycleError: Before init_rpc or after shutdown.
    """
    return list(current_agent().workers)


def watch_workers(callback: Callable[[WorkerEvent], object]) -> Watch:
    """Have a function called for each worker that joins, leaves or is lost.

    It hears of the present members first, this worker included; then of every change,
    in order, one at a time, on pool threads, until the watch is closed or this worker
    leaves. A worker is in `get_worker_infos`, and can be called, when it is told that
    the worker joined. What it raises is logged.

    Args:
        callback: Takes a `WorkerEvent`.

    Returns:
        The watch; close it, or use it as a context manager, to end it.

    Raises:
        LifecycleError: Before init_rpc or after shutdown.
    """
    return current_agent().membership.watch(callback)
