"""`backward` on the host: what plain torch does, on another thread, and its errors."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rpcfut
from rpcfut import Future, backward
from rpcfut._backward import leaves_of
from rpcfut._callbacks import isolated_runtime
from rpcfut._pool import ThreadPool
from tests.support.threads import Gate, run_together

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = 200
TIMEOUT_S = 10.0


class Odd(Exception):  # noqa: N818 - a name for a type that torch does not know
    """An error of the user's own."""


class Failing(torch.autograd.Function):
    """Passes its input on, and fails on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        raise Odd("on purpose", 7)


class Carrying(torch.autograd.Function):
    """Keeps something in its node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cargo: object) -> torch.Tensor:
        ctx.cargo = cargo
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * 2, None


class Opaque(torch.Tensor):
    """A subclass that says nothing about what it holds."""


def gated(tensor: torch.Tensor) -> tuple[Gate, Gate]:
    """Have a pass stop at a tensor: (it is there, it may go on)."""
    entered, may_go_on = Gate(), Gate()

    def stop(_: torch.Tensor) -> None:
        entered.set()
        may_go_on.pass_through()

    tensor.register_hook(stop)
    return entered, may_go_on


def leaf(*shape: int, value: float = 1.0) -> torch.Tensor:
    """A leaf that requires a gradient."""
    return torch.full(shape, value, requires_grad=True)


# ---- the same as plain torch --------------------------------------------------------


class Model:
    """A small random graph: some leaves, some roots, gradients for some of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        size = self._random.randint(1, 4)
        count = self._random.randint(1, 4)
        self.leaves = [
            torch.randn(size, size, requires_grad=True) for _ in range(count)
        ]
        values = list(self.leaves)
        for _ in range(self._random.randint(1, 12)):
            values.append(self._step(values))
        picked = self._random.sample(values, min(len(values), 3))
        self.roots = [self._root(value) for value in picked]
        self.gradients = [self._gradient(root) for root in self.roots]

    def _step(self, values: list[torch.Tensor]) -> torch.Tensor:
        a, b = self._random.choice(values), self._random.choice(values)
        return self._random.choice(
            [
                lambda: a + b,
                lambda: a * b,
                lambda: a @ b,
                lambda: torch.tanh(a),
                lambda: torch.cat([a, b])[: a.shape[0]],
                lambda: a.t().clone().sin_(),
                lambda: checkpoint(torch.sigmoid, a, use_reentrant=False),
            ]
        )()

    def _root(self, value: torch.Tensor) -> torch.Tensor:
        return value.sum() if self._random.random() < 0.5 else value

    def _gradient(self, root: torch.Tensor) -> torch.Tensor | None:
        if root.ndim == 0 and self._random.random() < 0.5:
            return None
        return torch.randn(root.shape)


def gradients_of(seed: int, run: Callable[..., object]) -> list[torch.Tensor | None]:
    """Run two passes over a model, the second for some leaves only."""
    model = Model(seed)
    run(model.roots, model.gradients, retain_graph=True)
    some = model.leaves[: 1 + seed % len(model.leaves)]
    run(model.roots, model.gradients, inputs=some)
    return [one.grad for one in model.leaves]


def are_equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two gradients are the same, bit by bit, or both missing."""
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def test_gradients_are_those_of_plain_torch() -> None:
    """The pass is torch's own, so they are the same, bit by bit (STR-10)."""
    for seed in range(MODELS):
        plain = gradients_of(seed, torch.autograd.backward)
        ours = gradients_of(seed, lambda *a, **k: backward(*a, **k).wait(TIMEOUT_S))
        assert all(map(are_equal, plain, ours)), f"seed {seed}: {plain} and {ours}"


def test_the_value_is_none_or_the_gradients_of_the_inputs() -> None:
    a, b, c = leaf(2), leaf(2), leaf(2)
    assert backward((a * 2 + b).sum()).wait(TIMEOUT_S) is None
    assert torch.equal(a.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]
    found = backward((a * b).sum(), inputs=[b, c]).wait(TIMEOUT_S)
    assert found[0] is b.grad
    assert found[1] is None
    assert torch.equal(b.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]
    assert torch.equal(a.grad, torch.full((2,), 2.0))  # type: ignore[arg-type]
    assert backward((a * b).sum(), None, a).wait(TIMEOUT_S) == [a.grad]


def test_a_leaf_may_be_a_root() -> None:
    a = leaf(1)
    backward([a, a], [torch.tensor([2.0]), None]).wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.tolist() == [3.0]


def test_a_scalar_gradient_of_another_kind_of_real_number_is_taken_as_torch_does() -> (
    None
):
    a = leaf(2)
    backward((a * 3).sum(), torch.tensor(2.0, dtype=torch.float64)).wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.tolist() == [6.0, 6.0]


def test_a_scalar_gradient_is_copied_to_where_its_root_lies() -> None:
    """As torch does; one with dimensions is refused."""
    a = torch.ones(1, requires_grad=True, device="meta")
    backward(a.sum(), torch.tensor(2.0)).wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.device.type == "meta"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_the_callers_grad_mode_does_not_matter(mode: Any) -> None:
    """A pass needs none; its hooks run without one, as in torch."""
    a = leaf(1)
    loss = (a * a).sum()
    seen: list[bool] = []
    a.register_hook(lambda _: seen.append(torch.is_grad_enabled()))
    with mode():
        backward(loss).wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.tolist() == [2.0]
    assert not a.grad.requires_grad
    assert seen == [False]


def test_saved_tensor_hooks_of_the_forward_pass_unpack_on_the_pool_thread() -> None:
    """They are kept with what they packed, not with the thread that packed it."""
    a = leaf(3, value=2.0)
    threads: list[str] = []

    def unpack(packed: list[float]) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return torch.tensor(packed)

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.tolist, unpack):
        loss = (a * a).sum()
    backward(loss).wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.tolist() == [4.0] * 3
    assert threads
    assert all(name.startswith("rpcfut-callback-") for name in threads)


# ---- while the caller goes on -------------------------------------------------------


def test_the_caller_goes_on_while_the_pass_runs() -> None:
    a = leaf(1)
    b = a * 2
    entered, may_go_on = gated(b)
    future = backward(b.sum())
    entered.pass_through()
    assert not future.done()
    assert a.grad is None
    with pytest.raises(TimeoutError, match="waits for its backward pass to end"):
        future.wait(0)
    assert f"made at {__file__}:" in future.explain()
    may_go_on.set()
    future.wait(TIMEOUT_S)
    assert a.grad is not None


def test_the_graph_is_that_of_the_call() -> None:
    """A root that is changed in place before the pass starts does not count."""
    a = leaf(1)
    loss = (a * 3).sum()
    may_go_on = Gate()
    with isolated_runtime() as runtime:
        runtime.pool = ThreadPool("rpcfut-callback", core_threads=1)
        runtime.pool.submit(may_go_on.pass_through)
        future = backward(loss)
        with torch.no_grad():
            loss.zero_().unsqueeze_(0)
        loss.detach_()
        may_go_on.set()
        future.wait(TIMEOUT_S)
    assert a.grad is not None
    assert a.grad.tolist() == [3.0]


def test_a_step_chained_to_the_pass_trains_as_the_plain_loop_does() -> None:
    def train(after: Callable[[torch.Tensor, Callable[[], None]], object]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(10):
            after(model(torch.randn(4, 3)).square().mean(), step)
        return [p.detach() for p in model.parameters()]

    def plain(loss: torch.Tensor, step: Callable[[], None]) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        step()

    def chained(loss: torch.Tensor, step: Callable[[], None]) -> None:
        backward(loss).then(lambda done: (done.value(), step())[1]).wait(TIMEOUT_S)

    assert all(map(torch.equal, train(plain), train(chained)))


def test_the_graph_is_dropped_before_the_callbacks_run() -> None:
    """What its nodes hold does not live through the step that follows."""
    a = leaf(1)
    cargo = torch.zeros(1)
    alive = weakref.ref(cargo)
    loss = Carrying.apply(a, cargo).sum()
    entered, may_go_on = gated(loss)
    future = backward(loss)
    entered.pass_through()
    child = future.then(lambda _: (gc.collect(), alive())[1])
    del loss, cargo
    may_go_on.set()
    assert child.wait(TIMEOUT_S) is None
    assert a.grad is not None


def test_cancelling_does_not_stop_the_pass() -> None:
    """The future ends at once; the gradients are accumulated all the same."""
    a = leaf(1)
    b = a * 2
    entered, may_go_on = gated(b)
    arrived = Gate()
    a.register_post_accumulate_grad_hook(lambda _: arrived.set())
    future = backward(b.sum())
    entered.pass_through()
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.wait(TIMEOUT_S)
    may_go_on.set()
    arrived.pass_through()
    assert a.grad is not None
    assert a.grad.tolist() == [2.0]


# ---- errors -------------------------------------------------------------------------


def test_an_error_of_the_pass_is_the_futures_with_its_own_type() -> None:
    future = backward(Failing.apply(leaf(1)).sum())
    error = future.exception(TIMEOUT_S)
    assert type(error) is Odd
    assert error.args == ("on purpose", 7)
    child = future.then(lambda done: done.value())
    assert child.exception(TIMEOUT_S) is error


def test_a_second_pass_over_a_graph_that_was_not_retained_fails_in_the_future() -> None:
    a = leaf(1)
    loss = (a * a).sum()
    backward(loss, retain_graph=True).wait(TIMEOUT_S)
    backward(loss).wait(TIMEOUT_S)
    with pytest.raises(RuntimeError, match="second time"):
        backward(loss).wait(TIMEOUT_S)


def test_a_saved_tensor_that_was_overwritten_fails_in_the_future() -> None:
    a = leaf(1)
    b = a * 1
    loss = (b * b).sum()
    with torch.no_grad():
        b.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(loss).wait(TIMEOUT_S)


R = torch.ones(2, requires_grad=True)
Z = torch.ones(2, requires_grad=True, dtype=torch.complex64)
N = torch.ones(2)
WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "root is no tensor": ((1.0,), {}, TypeError, r"roots must be .* got 1.0"),
    "root is a generator": (
        ((r for r in [R]),),
        {},
        TypeError,
        r"roots must be a tensor or a list or tuple, got <gen",
    ),
    "a root is no tensor": (([R.sum(), None],), {}, TypeError, r"roots\[1\] .* None"),
    "no root": (([],), {}, ValueError, "roots is empty"),
    "root without gradient": ((N,), {}, RuntimeError, "roots does not require"),
    "one of them": (
        ([R.sum(), N],),
        {},
        RuntimeError,
        r"roots\[1\] does not require a gradient",
    ),
    "no scalar": ((R * 2,), {}, RuntimeError, r"roots\[0\] is no real scalar .*\(2,\)"),
    "complex": ((Z.sum(),), {}, RuntimeError, "no real scalar .*complex64"),
    "gradient is a number": ((R, 1.0), {}, TypeError, "grad_tensors must be .* 1.0"),
    "a gradient is a number": ((R, [1.0]), {}, TypeError, r"grad_tensors\[0\] must"),
    "too many": ((R, [N, N]), {}, ValueError, "2 gradients for 1 roots"),
    "too few": (([R, R], N), {}, ValueError, "1 gradients for 2 roots"),
    "shape": (
        (R, torch.ones(3)),
        {},
        ValueError,
        r"grad_tensors\[0\] has shape \(3,\), and roots\[0\] \(2,\)",
    ),
    "device": (
        (R, torch.ones(2, device="meta")),
        {},
        ValueError,
        r"has device meta, and roots\[0\] cpu",
    ),
    "number": ((Z, N), {}, ValueError, "has kind of number real, .* complex"),
    "input is no tensor": ((R.sum(),), {"inputs": {R}}, TypeError, "inputs must be"),
    "torch's third": ((R.sum(), None, True), {}, TypeError, "inputs must be .* True"),
    "no input": ((R.sum(),), {"inputs": ()}, ValueError, "inputs is empty"),
    "input without gradient": (
        (R.sum(),),
        {"inputs": [R, N]},
        RuntimeError,
        r"inputs\[1\] does not require",
    ),
    "input is no leaf": (
        (R.sum(),),
        {"inputs": R * 2},
        ValueError,
        "inputs is no leaf but a result of <MulBackward0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_at_the_call_and_nothing_is_done(name: str) -> None:
    args, named, kind, text = WRONG[name]
    with pytest.raises(kind, match=text) as caught:
        backward(*args, **named)
    assert type(caught.value) is kind
    assert R.grad is None
    assert Z.grad is None


def test_a_pass_inside_a_transform_is_refused() -> None:
    """Its tensors are levels of the transform, which belong to one thread."""
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda x: (backward(x.sum()), x.sum())[1])(torch.ones(1))


def test_a_gradient_of_an_unknown_type_is_refused() -> None:
    """Nobody could keep its memory alive (EXT-3)."""
    given = torch.ones(2).as_subclass(Opaque)
    with pytest.raises(rpcfut.ExtractionError, match=r"Opaque"):
        backward(R * 2, given)


# ---- many at once -------------------------------------------------------------------


def disjoint_passes(count: int, rows: int) -> None:
    """Run passes over graphs that share nothing, from two threads at once."""

    def one(index: int) -> tuple[torch.Tensor, Future[None]]:
        weight = torch.full((rows, rows), float(index), requires_grad=True)
        return weight, backward((weight @ weight).sum())

    def half(first: int) -> None:
        passes = [(index, *one(index)) for index in range(first, count, 2)]
        for index, weight, future in passes:
            future.wait(TIMEOUT_S)
            assert weight.grad is not None
            assert torch.equal(weight.grad, torch.full_like(weight, 2.0 * index * rows))

    assert run_together(lambda: half(0), lambda: half(1)) == [None, None]


def test_passes_over_disjoint_graphs_do_not_disturb_each_other() -> None:
    """Twenty times, with both threads and the pool busy."""
    for _ in range(20):
        disjoint_passes(count=40, rows=16)


def test_passes_that_share_leaves_lose_no_gradient() -> None:
    """torch adds to a leaf's gradient under a lock; whole numbers add up exactly."""
    for _ in range(20):
        shared = torch.ones(500, requires_grad=True)

        def several(first: int, shared: torch.Tensor = shared) -> None:
            futures = [
                backward((shared * float(factor)).sum())
                for factor in range(first, 50, 2)
            ]
            for future in futures:
                future.wait(TIMEOUT_S)

        assert run_together(lambda: several(0), lambda: several(1)) == [None, None]
        assert shared.grad is not None
        assert torch.equal(shared.grad, torch.full((500,), float(sum(range(50)))))


def test_passes_at_once_may_share_one_graph_that_is_retained() -> None:
    """torch locks its nodes."""
    a = torch.ones(100, requires_grad=True)
    loss = (a * a).sum()
    futures = [backward(loss, retain_graph=True) for _ in range(50)]
    for future in futures:
        future.wait(TIMEOUT_S)
    assert a.grad is not None
    assert torch.equal(a.grad, torch.full((100,), 100.0))


# ---- the leaves of a graph ----------------------------------------------------------


def test_all_leaves_of_a_graph_are_found_once() -> None:
    """Also deep ones, shared ones, and none that the roots do not depend on."""
    a, b, _ = leaf(1), leaf(1), leaf(1)
    deep = a * b
    for _ in range(5000):
        deep = deep + a
    edges = [torch.autograd.graph.get_gradient_edge(t) for t in (deep, b, deep)]
    found = leaves_of(edge.node for edge in edges)
    assert sorted(map(id, found)) == sorted(map(id, [a, b]))
