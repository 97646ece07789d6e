"""What a future is told about itself: whose it is, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from rpcfut._call_info import PendingCall
    from rpcfut._future_core import FutureCore

F = TypeVar("F", bound="FutureCore[Any]")


def make_future(future_type: type[F], made_at: tuple[CodeType, int]) -> F:
    """Make a future without asking where: that is known."""
    future = future_type.__new__(future_type)
    future._begin(made_at)
    return future


def bind_members(
    future: FutureCore[Any],
    made_at: tuple[CodeType, int],
    members: Callable[[], Sequence[FutureCore[Any]]],
) -> None:
    """Tell a future which others it waits for, and who asked for it."""
    future._made_at = made_at
    future._members = members


def bind_work(
    future: FutureCore[Any], made_at: tuple[CodeType, int], what: str
) -> None:
    """Tell a future what the library does for it, and who asked for that."""
    future._made_at = made_at
    future._work = what


def bind_call(future: FutureCore[Any], call: PendingCall) -> None:
    """Tell a future which call's answer completes it."""
    future._about = future._call = call
