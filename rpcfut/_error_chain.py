"""Which exceptions of a chain travel, and in which order (RPC-4)."""

from __future__ import annotations

from typing import Final, NamedTuple

from rpcfut._error_text import own
from rpcfut._errors import RemoteError

MAX_CHAIN: Final = 20
_MAX_COUNTED: Final = 100_000


class Chain(NamedTuple):
    """Exceptions, each before those that it refers to.

    Args:
        links: The exceptions; the first is the one that was raised.
        left_out: How many more there are.
    """

    links: list[BaseException]
    left_out: int


def chain_of(error: BaseException) -> Chain:
    """List an exception and those that it refers to, the nearest ones, each once."""
    reached = [error]
    seen = {id(error)}
    for link in reached:
        for other in _linked(link):
            if id(other) not in seen and len(reached) < _MAX_COUNTED:
                seen.add(id(other))
                reached.append(other)
    kept = reached[:MAX_CHAIN]
    return Chain(_ordered(kept), len(reached) - len(kept))


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions that a group holds, also one of a type that is not here."""
    if issubclass(type(error), BaseExceptionGroup):
        members = vars(BaseExceptionGroup)["exceptions"].__get__(error)
    else:
        held = vars(error).get("exceptions") if type(error) is RemoteError else None
        members = held if type(held) is tuple else ()
    return tuple(m for m in members if issubclass(type(m), BaseException))


def _linked(error: BaseException) -> list[BaseException]:
    links = (own(error, "__cause__"), own(error, "__context__"), *members_of(error))
    return [link for link in links if link is not None]


def _ordered(kept: list[BaseException]) -> list[BaseException]:
    """Sort so that only a cycle has a reference to an earlier one."""
    wanted = {id(link) for link in kept}
    left: list[BaseException] = []
    _visit(kept[0], wanted, left)
    return left[::-1]


def _visit(error: BaseException, wanted: set[int], left: list[BaseException]) -> None:
    # No local function: one that calls itself is a cycle, and keeps the error, with all
    # that its frames hold, until a garbage collection.
    wanted.remove(id(error))
    for other in _linked(error):
        if id(other) in wanted:
            _visit(other, wanted, left)
    left.append(error)
