"""What a type checker makes of futures (B132). Checked by mypy, never run.

An ignore with a code is an error that is expected here: mypy reports one that it does
not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_type

import torch

import rpcfut
from rpcfut import Cancelled, Failure, Future, Outcome, Value

if TYPE_CHECKING:
    import concurrent.futures


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """A function that a worker exposes."""
    return tensor * factor


def read(future: Future[int]) -> str:
    """A callback."""
    return str(future.value())


async def read_async(future: Future[int]) -> bytes:
    """A callback that is a coroutine."""
    return str(await future).encode()


def reading(future: Future[int]) -> None:
    """Every way to the value has its type."""
    assert_type(future.wait(), int)
    assert_type(future.wait(timeout=1.5), int)
    assert_type(future.result(1), int)
    assert_type(future.value(), int)
    assert_type(future.exception(), BaseException | None)
    assert_type(future.done(), bool)
    assert_type(future.explain(), str)
    future.wait("soon")  # type: ignore[arg-type]
    future.wait(time=3)  # type: ignore[call-arg]


def completing(future: Future[int]) -> None:
    """Only a value of its type fits."""
    future.set_result(3)
    assert_type(future.try_set_result(3), bool)
    future.set_exception(ValueError("no"))
    future.set_result("three")  # type: ignore[arg-type]


def chaining(future: Future[int]) -> None:
    """A child has the type that the callback returns."""
    assert_type(future.then(read), Future[str])
    assert_type(future.then(lambda f: f.value() + 0.5), Future[float])
    assert_type(future.then(read).then(lambda f: len(f.value())), Future[int])
    assert_type(future.then(read, devices=["cuda:0"], after_here=False), Future[str])
    future.then(read, stream=rpcfut.stream("cpu"))
    future.then(len)  # type: ignore[arg-type]
    future.then(lambda: 3)  # type: ignore[misc, arg-type]
    future.then(3)  # type: ignore[call-overload]


def flattening(future: Future[int]) -> None:
    """A callback's future is not a future of a future."""

    def again(done: Future[int]) -> Future[str]:
        return done.then(read)

    assert_type(future.then(again), Future[str])
    assert_type(future.then(lambda f: f.then(read)), Future[str])
    assert_type(future.then_async(read_async), Future[bytes])
    future.then_async(read)  # type: ignore[arg-type]


def callbacks(future: Future[int]) -> None:
    """What a done callback returns does not matter; what it takes does."""
    future.add_done_callback(lambda f: f.value() + 1)
    assert_type(future.remove_done_callback(read), int)
    future.add_done_callback(scale)  # type: ignore[arg-type]


async def awaiting(future: Future[int]) -> None:
    """In asyncio and with its functions."""
    assert_type(await future, int)
    first, second = await asyncio.gather(future, future.then(read))
    assert_type(first, int)
    assert_type(second, str)
    assert_type(await asyncio.wait_for(future, 1), int)
    assert_type(await asyncio.shield(future), int)


def groups(numbers: list[Future[int]], texts: list[Future[str]]) -> None:
    """The members' type goes through."""
    assert_type(rpcfut.collect_all(numbers), Future[list[Future[int]]])
    assert_type(rpcfut.collect_all(numbers).wait()[0].value(), int)
    assert_type(rpcfut.wait_all(texts, timeout=3), list[str])
    assert_type(rpcfut.as_completed(texts), Iterator[Future[str]])
    assert_type(rpcfut.gather_outcomes(numbers), Future[list[Outcome[int]]])
    rpcfut.wait_all([*numbers, 3])  # type: ignore[arg-type]


def matching(outcome: Outcome[int]) -> int:
    """An outcome is one of three, and a checker knows that."""
    match outcome:
        case Value(value):
            return assert_type(value, int)
        case Failure(error):
            assert_type(error, BaseException)
            return 0
        case Cancelled():
            return 0


def calling(tensor: torch.Tensor) -> None:
    """A call by function has its return type; one by name has none."""
    future = rpcfut.rpc_async("worker", scale, (tensor, 2.0))
    assert_type(future, Future[torch.Tensor])
    assert_type(
        future.then(lambda f: f.value().sum().item()), Future[int | float | bool]
    )
    assert_type(rpcfut.rpc_sync("worker", scale, (tensor, 2.0)), torch.Tensor)
    named: Future[Any] = rpcfut.rpc_async("worker", "scale", (tensor, 2.0))
    many = rpcfut.rpc_async(["one", "two"], scale, (tensor, 2.0))
    assert_type(many, list[Future[torch.Tensor]])
    assert_type(rpcfut.rpc_sync(("a", 2), scale, (tensor, 2.0)), list[torch.Tensor])
    named.wait()


def differentiating(loss: torch.Tensor, leaf: torch.Tensor) -> None:
    """A pass has no value, or the gradients that were asked for."""
    assert_type(rpcfut.backward(loss), Future[None])
    assert_type(rpcfut.backward([loss, loss], [None, loss]), Future[None])
    gradients = rpcfut.backward(loss, inputs=[leaf], retain_graph=True)
    assert_type(gradients, Future[list[torch.Tensor | None]])
    by_position = rpcfut.backward(loss, None, [leaf], True)  # noqa: FBT003 - its type
    assert_type(by_position, Future[list[torch.Tensor | None]])
    rpcfut.backward(loss, None, True)  # type: ignore[call-overload]  # noqa: FBT003


def foreign(future: Future[int]) -> None:
    """It is a future of concurrent.futures."""
    plain: concurrent.futures.Future[int] = future
    assert_type(asyncio.wrap_future(plain), asyncio.Future[int])
