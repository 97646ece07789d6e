"""Waiting for room in the queue to a worker, or being refused (RPC-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcfut._errors import DeadlockError, QueueFullError
from rpcfut._future_core import now_s
from rpcfut._future_wait import block_here
from rpcfut_transport import TicketState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from rpcfut._workers import WorkerInfo
    from rpcfut_transport import Endpoint, QueueFull, Rooms, Ticket

_ADVICE = (
    "wait for some of its earlier calls before you make more, or join with "
    "init_rpc(queue_nbytes=...) for a longer queue"
)


def wait_for_room(
    endpoint: Endpoint,
    rank: int,
    call: object,
    full: QueueFull,
    until_s: float | None,
) -> Ticket | None:
    """Block the calling thread until there is room for a call, or no reason to wait.

    Args:
        endpoint: Where the call will be opened.
        rank: Whom it goes to.
        call: The call, for messages.
        full: How it was refused.
        until_s: When to stop waiting, monotonic; None for never.

    Returns:
        A ticket for the room, or one that is ended, since the worker is gone or we
        closed; to be given back. None when time is up.

    Raises:
        QueueFullError: When nothing may block on this thread.
        PoolExhaustedError: When called on a pool thread and no other may start.
    """
    rooms, inbox = endpoint.rooms, endpoint.inbox
    waiter = inbox.waiter()
    ticket = rooms.draw(rank, full.nbytes, waiter.finish)
    try:
        while ticket.state is TicketState.WAITS:
            left_s = None if until_s is None else until_s - now_s()
            if left_s is not None and left_s <= 0:
                rooms.give_back(rank, ticket)
                return None
            block_here(waiter, inbox, left_s)
    except DeadlockError:
        rooms.give_back(rank, ticket)
        why = "; this thread runs coroutines, and may not wait"
        raise refusal(call, full, why) from None
    except BaseException:
        rooms.give_back(rank, ticket)
        raise
    return ticket


def reserve_all(
    rooms: Rooms,
    workers: Sequence[WorkerInfo],
    nbytes: int,
    function: str,
    undo: ExitStack,
) -> list[Ticket]:
    """Take room for a call to each of some workers, or for none.

    Args:
        rooms: Where.
        workers: Whom the calls go to.
        nbytes: How much each takes.
        function: What is called, for messages.
        undo: Gets what gives back what is not used.

    Raises:
        QueueFullError: When there is none for one of them.
    """
    tickets = []
    for worker in workers:
        ticket = rooms.draw(worker.rank, nbytes, _nothing)
        undo.callback(rooms.give_back, worker.rank, ticket)
        if ticket.state is TicketState.WAITS:
            call = f"{function} on worker {worker.name!r}"
            raise refusal(call, rooms.no_room(worker.rank, nbytes))
        tickets.append(ticket)
    return tickets


def refusal(call: object, full: QueueFull, why: str = "") -> QueueFullError:
    """The error of a call that found no room and does not wait."""
    return QueueFullError(f"cannot call {call}: {full}{why}; {_ADVICE}")


def _nothing() -> None:
    """Nobody waits for these tickets."""
