"""Pool streams for work that calls bring: the frames of handlers and of decoding."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from rpcfut import _callbacks
from rpcfut._future_core import completion_of_done
from rpcfut._staging import place
from rpcfut._streams import enter_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from rpcfut._codec import Place
    from rpcfut._devices import Device
    from rpcfut._future import Future
    from rpcfut._streams import Scope


Locate: TypeAlias = "Callable[[Device], Device | None]"


@contextmanager
def own_streams(future: Future[Any] | None = None) -> Iterator[Scope]:
    """Run what is inside on pool streams, behind the marks of a future if given.

    Devices that are not used yet get their stream when a value arrives there: see
    `place_in`.
    """
    done = completion_of_done(future) if future is not None else None
    scope = enter_scope(
        _callbacks.runtime().streams.lease,
        marks=done.marks if done is not None else (),
        refs=done.refs if done is not None else (),
    )
    try:
        yield scope
    finally:
        scope.leave()


def place_in(scope: Scope, locate: Locate) -> Place:
    """What puts received arrays on their devices, on the scope's streams.

    Args:
        scope: Gets a stream on each of these devices.
        locate: Says where an array arrives, given where it lay; None for the host.
    """

    def place_on_stream(tensor: torch.Tensor, device: Device) -> Any:
        here = locate(device)
        if here is None:
            return tensor
        scope.add((here,))
        return place(tensor, here)

    return place_on_stream
