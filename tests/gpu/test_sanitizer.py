"""torch's CUDA sanitizer sees what callbacks do: a planted race is reported."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from rpcfut import Future

pytestmark = [
    pytest.mark.gpu(n=1),
    pytest.mark.skipif(
        os.environ.get("RPCFUT_SANITIZE") != "1",
        reason="runs under the sanitizer only: .ci/gpu sanitizer",
    ),
]


def test_a_race_that_a_callback_on_a_library_thread_makes_is_reported() -> None:
    """It adds to what a side stream writes, and nothing orders the two."""
    x = torch.zeros(8, device="cuda:0")
    side = torch.cuda.Stream(0)
    side.wait_stream(torch.cuda.current_stream(0))
    with torch.cuda.stream(side):
        x.fill_(1)
    parent: Future[None] = Future()
    parent.set_result(None)
    here = threading.current_thread()
    threads = []

    def race(_: Future[None]) -> None:
        threads.append(threading.current_thread())
        x.add_(1)

    error = parent.then(race, after_here=False).exception(timeout=10)
    assert threads != [here]
    assert type(error).__name__ == "CUDASanitizerErrors"


def test_the_same_with_a_future_between_is_clean() -> None:
    """The sanitizer sees our events and waits."""
    x = torch.zeros(8, device="cuda:0")
    parent: Future[torch.Tensor] = Future()
    side = torch.cuda.Stream(0)
    side.wait_stream(torch.cuda.current_stream(0))
    with torch.cuda.stream(side):
        parent.set_result(x.fill_(1))
    child = parent.then(lambda f: f.value().add_(1), after_here=False)
    assert child.wait(10).sum().item() == 16
