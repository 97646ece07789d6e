"""Which process a peer is: the kernel says, not the peer's record.

Theory of operation: whoever can write to the store can name any process in a record, so
a pid and a start time prove nothing. But the kernel notes which process listens on a
Unix socket, and tells who connects to it; since Linux 6.5 it gives out a pidfd of that
process, also across pid namespaces and also while a forked child holds the same socket.
So the inbox of the peer, in a folder that only our user can enter, is connected to once
for nothing but that question.

Older kernels tell a pid, which may have been used again; there the start time from the
record must fit, too.

By TCP nobody can be asked. But there records are signed, so theirs is believed, and
heartbeats are watched besides.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from rpcfut_transport._errors import LinkError
from rpcfut_transport._liveness import process_start_time
from rpcfut_transport.links._inbox_folder import INBOX, IPC_SCHEME, open_trusted_folder

if TYPE_CHECKING:
    from rpcfut_transport._peers import PeerRecord

_SO_PEERPIDFD = 77  # the same on all machines that torch runs on
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_NOBODY_LISTENS = frozenset({errno.ECONNREFUSED, errno.ENOENT})
_WAS_COLLECTED = frozenset({errno.ESRCH, errno.EINVAL})


class Finding(Enum):
    """What is known of the process of a peer."""

    PROVED = "proved"  # the pidfd names it for certain
    CLAIMED = "claimed"  # a record that is signed says so
    OWN = "own"  # it is this one, which sees no end of itself
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is known of the process of a peer.

    Args:
        finding: How sure that is.
        pidfd: Names the process; whoever gets the proof closes it.
        reason: Why it is gone, or why nothing is known.
    """

    finding: Finding
    pidfd: int | None = None
    reason: str = ""

    def close(self) -> None:
        """Close the pidfd, if nobody uses it."""
        if self.pidfd is not None:
            os.close(self.pidfd)


def find_process(mine: PeerRecord, peer: PeerRecord) -> Proof:
    """Find the process of a peer. Any thread; does not block.

    Args:
        mine: Who asks.
        peer: Who is asked for; hostile input.
    """
    if mine.host_id == peer.host_id and peer.address.startswith(IPC_SCHEME):
        return _ask_kernel(peer)
    if not (mine.sees_pids_of(peer) and peer.public_key and mine.public_key):
        return _unknown("its host has another kernel, or another view of processes")
    if peer.pid == os.getpid():
        return _unknown("its record says that it is this process")
    return _open_pidfd(peer.pid, peer.start_time, Finding.CLAIMED)


def _ask_kernel(peer: PeerRecord) -> Proof:
    try:
        folder_fd = open_trusted_folder(peer.address)
    except LinkError as error:
        return _unknown(str(error))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0)
            probe.connect(f"/proc/self/fd/{folder_fd}/{INBOX}")
            return _listener_of(probe, peer)
    except OSError as error:
        if error.errno in _NOBODY_LISTENS:
            return _gone(f"nobody listens at {peer.address} any more")
        return _unknown(f"cannot ask who listens at {peer.address}: {error}")
    finally:
        os.close(folder_fd)


def _listener_of(probe: socket.socket, peer: PeerRecord) -> Proof:
    raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(raw)[0]
    if pid == os.getpid():
        return Proof(finding=Finding.OWN)
    try:
        pidfd = probe.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in _WAS_COLLECTED:
            return _gone(f"process {pid}, which listened at {peer.address}, ended")
    else:
        return Proof(finding=Finding.PROVED, pidfd=pidfd)
    if pid == 0:
        return _unknown("its process is not seen from this pid namespace")
    return _open_pidfd(pid, peer.start_time, Finding.PROVED)


def _open_pidfd(pid: int, start_time: int, finding: Finding) -> Proof:
    """Open the pidfd of a process that started at a certain time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return _gone(f"no process {pid}")
    except OSError as error:
        return _unknown(f"process {pid} cannot be watched: {error}")
    # After the pidfd was opened: that names one process for good, a pid does not.
    started = process_start_time(pid)
    if started == start_time:
        return Proof(finding=finding, pidfd=pidfd)
    os.close(pidfd)
    return _unknown(
        f"process {pid} started at tick {started}, the recorded one at {start_time}"
    )


def _gone(reason: str) -> Proof:
    return Proof(finding=Finding.GONE, reason=reason)


def _unknown(reason: str) -> Proof:
    return Proof(finding=Finding.UNKNOWN, reason=reason)
