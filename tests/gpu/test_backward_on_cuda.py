"""STR-10 on a real GPU: the four cases of a backward pass, and what follows it.

In each test the forward pass has a stream of its own, on which torch runs the nodes of
the backward pass as well; caller and reader have others. A latch holds up one of them.
The gradient of the leaf is there already, zeros, so that a reader that does not wait
sees zeros; the right value is the number of the round.
"""

from __future__ import annotations

import threading

import pytest
import torch

import rpcfut
from tests.support.latch import Latch
from tests.support.rounds import SIZE, in_rounds, is_all, reads

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(120)]

POLLS = 50
POLL_S = 2e-4


class Forward:
    """`weight * factor`, computed on a stream of its own.

    Args:
        factor: What the gradient of the weight is, for a gradient of ones.
        had: The gradient that the weight has before.
    """

    def __init__(self, factor: float, had: float = 0.0) -> None:
        self.weight = torch.ones(SIZE, device="cuda:0", requires_grad=True)
        self.grad = torch.full((SIZE,), had, device="cuda:0")
        self.weight.grad = self.grad
        scale = torch.full((SIZE,), float(factor), device="cuda:0")
        self.stream = torch.cuda.Stream(0)
        torch.cuda.current_stream(0).synchronize()
        with torch.cuda.stream(self.stream):
            self.product = self.weight * scale
            self.loss = self.product.sum()

    def after(self, future: rpcfut.Future[None]) -> torch.Tensor:
        """The gradient, read behind a future, with the streams of the caller."""
        future.wait(10)
        return self.grad


def zeros() -> torch.Tensor:
    """Zeros that are there."""
    made = torch.zeros(SIZE, device="cuda:0")
    torch.cuda.current_stream(0).synchronize()
    return made


def test_str10_implicit_gradient_is_right() -> None:
    """The forward pass's stream is behind, and the reader waits for it."""

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn)
        latch.hold(forward.stream)
        with torch.cuda.stream(torch.cuda.Stream(0)):
            future = rpcfut.backward(forward.loss)
        return reads(latch, lambda: forward.after(future), turn)

    in_rounds(is_right)


def test_str10_implicit_gradient_comes_after_what_the_caller_queued_before() -> None:
    """The caller's stream is behind, with zeroing the gradient that the leaf had."""

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn, had=100.0)
        caller = torch.cuda.Stream(0)
        latch.hold(caller)
        with torch.cuda.stream(caller):
            forward.grad.zero_()
            future = rpcfut.backward(forward.loss)
        right = reads(latch, lambda: forward.after(future), turn)
        caller.synchronize()
        return right

    in_rounds(is_right)


def explicit(turn: int, *, same: bool, joined: bool) -> bool:
    """Whether an explicit gradient that a stream makes late is used as it should be."""
    latch, forward, gradient = Latch(), Forward(1.0), zeros()
    maker = torch.cuda.Stream(0)
    caller = maker if same else torch.cuda.Stream(0)
    latch.hold(maker)
    with torch.cuda.stream(maker):
        gradient.fill_(turn)
    if joined:
        caller.wait_stream(maker)
    with torch.cuda.stream(caller):
        future = rpcfut.backward(forward.product, gradient)
    right = reads(latch, lambda: forward.after(future), turn)
    maker.synchronize()
    return right


def test_str10_explicit_gradient_of_the_callers_stream_is_right() -> None:
    in_rounds(lambda turn: explicit(turn, same=True, joined=False))


@pytest.mark.racy
def test_str10_explicit_gradient_of_another_stream_is_wrong_each_time() -> None:
    """Nothing orders the pass behind the stream that makes the gradient."""
    in_rounds(lambda turn: not explicit(turn, same=False, joined=False))


def test_str10_explicit_gradient_of_a_joined_stream_is_right() -> None:
    in_rounds(lambda turn: explicit(turn, same=False, joined=True))


def test_str10_a_step_chained_to_the_pass_is_right() -> None:
    """It runs on streams of its own, while the pass is behind."""

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn)
        latch.hold(forward.stream)
        step = rpcfut.backward(forward.loss).then(lambda _: forward.grad * 2)
        return reads(latch, lambda: step.wait(10), 2 * turn)

    in_rounds(is_right)


def test_str10_gradients_of_inputs_are_the_value() -> None:
    """And only these are accumulated."""

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn)
        other = torch.ones(SIZE, device="cuda:0", requires_grad=True)
        with torch.cuda.stream(forward.stream):
            loss = forward.loss + other.sum()
        latch.hold(forward.stream)
        future = rpcfut.backward(loss, inputs=[forward.weight])

        def read() -> torch.Tensor:
            (found,) = future.wait(10)
            assert found is forward.grad
            return found

        return reads(latch, read, turn) and other.grad is None

    in_rounds(is_right)


def test_str10_gradients_live_until_their_reader_is_through() -> None:
    """They are memory of the forward pass's stream; nobody but a reader holds them."""
    pause = threading.Event()

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn)
        del forward.grad
        forward.weight.grad = None
        future = rpcfut.backward(forward.loss)
        reader = torch.cuda.Stream(0)
        seen = zeros()
        latch.hold(reader)
        with torch.cuda.stream(reader):
            future.wait(10)
            found = forward.weight.grad
            assert found is not None
            pointer = found.data_ptr()
            seen.copy_(found)
        forward.weight.grad = None
        del future, found
        with torch.cuda.stream(forward.stream):
            noise: list[torch.Tensor] = []
            while len(noise) < POLLS:
                noise.append(torch.full((SIZE,), -1.0, device="cuda:0"))
                if noise[-1].data_ptr() == pointer:
                    break  # wrong: the reader has yet to read it
                pause.wait(POLL_S)
            forward.stream.synchronize()
        latch.open()
        reader.synchronize()
        with torch.cuda.stream(reader):
            return is_all(seen, turn)

    in_rounds(is_right)


def test_hooks_run_under_the_forward_passes_stream() -> None:
    """As in torch: a hook that reads the current stream sees that of its node."""
    forward = Forward(1.0)
    seen: list[torch.cuda.Stream] = []
    forward.product.register_hook(lambda _: seen.append(torch.cuda.current_stream(0)))
    caller = torch.cuda.Stream(0)
    with torch.cuda.stream(caller):
        rpcfut.backward(forward.loss).wait(10)
        assert torch.cuda.current_stream(0) == caller
    assert seen == [forward.stream]


@pytest.mark.gpu(n=2)
def test_str10_gradients_on_two_devices_are_right() -> None:
    """The root is on one device, the stream that is behind on the other."""

    def is_right(turn: int) -> bool:
        latch, forward = Latch(), Forward(turn)
        there = torch.ones(SIZE, device="cuda:1", requires_grad=True)
        node = torch.cuda.Stream(1)
        torch.cuda.current_stream(1).synchronize()
        with torch.cuda.stream(node), torch.cuda.stream(forward.stream):
            loss = (forward.product.to("cuda:1") * there).sum()
        latch.hold(forward.stream)
        future = rpcfut.backward(loss)
        return reads(latch, lambda: forward.after(future), turn)

    in_rounds(is_right)
