"""How many peers a process has room for: file descriptors, and sockets of ZeroMQ.

Theory of operation. A way to a peer takes up to three descriptors here, and one more
when the peer connects to us. ZeroMQ ends the whole process when it has none left for
somebody who connects, so we stop before: at the last moment that can still be an error.
The soft limit of descriptors is mostly 1024 for the sake of programs that call
`select`; a process may raise it to the hard one by itself, and so we do.
"""

from __future__ import annotations

import os
import resource

import zmq

from rpcfut_transport._errors import LinkError

_MAX_SOCKETS = 16_384  # ZeroMQ's default is 1023
_ENOUGH_FILES = 65_536
_FILES_TO_COME = 64  # for files of others, and the first who connect to us


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Make a context with room for many sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


def raise_file_limit() -> None:
    """Raise the soft limit of open files as far as it may be, and is of use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH_FILES
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def require_room(way_count: int) -> None:
    """Check that one more peer does not use up the files of this process.

    Args:
        way_count: How many peers there are ways to; as many may still connect to us.

    Raises:
        LinkError: When it might; says which limit to raise.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        lowest_free = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _too_many(way_count, limit) from error
    os.close(lowest_free)
    if lowest_free + way_count + _FILES_TO_COME >= limit:
        raise _too_many(way_count, limit)


def _too_many(way_count: int, limit: int) -> LinkError:
    return LinkError(
        f"nearly all of the {limit} files that this process may open are in use, and "
        f"ZeroMQ would end it over one more ({way_count} peers are connected); raise "
        f"the limit before it starts, as by 'ulimit -n {2 * limit}'"
    )
