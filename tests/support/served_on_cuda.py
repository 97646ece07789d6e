"""What functions launched on a GPU for their callers, and what these see of it."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from rpcfut import _callbacks
from rpcfut._devices import Device
from tests.support.rounds import is_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut._agent import Agent
    from rpcfut._future import Future

WAIT_S = 30
_POLL_S = 1e-3


class Served:
    """Handlers that say on which stream they launched their work."""

    def __init__(self) -> None:
        self._streams: queue.SimpleQueue[torch.cuda.Stream] = queue.SimpleQueue()

    def saying_so(
        self, work: Callable[..., torch.Tensor | None]
    ) -> Callable[..., torch.Tensor | None]:
        """A handler that does `work`."""

        def handler(*args: object) -> torch.Tensor | None:
            result = work(*args)
            self._streams.put(torch.cuda.current_stream(0))
            return result

        return handler

    def stream(self) -> torch.cuda.Stream:
        """The stream of the handler that launched its work last."""
        return self._streams.get(timeout=WAIT_S)


def is_answer(future: Future[torch.Tensor], value: float) -> bool:
    """Whether a side stream sees an answer whose every element is `value`."""
    with torch.cuda.stream(torch.cuda.Stream(0)):
        return is_all(future.wait(WAIT_S), value)


def wait_until_idle(server: Agent) -> None:
    """Wait until a worker's pool threads gave back the streams of what they served."""
    pause = threading.Event()
    while not repr(server).endswith(" 0 served>"):
        pause.wait(_POLL_S)


@contextmanager
def free_streams_taken() -> Iterator[None]:
    """Let handlers get other streams than the last ones had: one stream is an order."""
    lease = _callbacks.runtime().streams.lease
    leases = [lease(Device("cuda", 0)) for _ in range(8)]
    try:
        yield
    finally:
        for _, give_back in leases:
            give_back()
