"""What workers tell each other about themselves before they can talk."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass

from rpcfut_transport._errors import LinkError
from rpcfut_transport._liveness import host_id, pid_namespace, process_start_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """One worker, as it is published.

    Args:
        rank: Its number in the group.
        name: Its name, for messages.
        incarnation: Which life of it; a restarted worker takes another number.
        address: Where its link is reached on its host.
        pid: Its process id, in its own namespace.
        start_time: When its process started, in clock ticks since boot.
        pid_namespace: What names the namespace of its process id.
        host_id: What names its host until that reboots.
        details: What the layer above says of the worker; not looked at here.
        tcp_address: Where its link is reached from other hosts; empty if it is not.
        public_key: Whose secret half it has; empty if it has none.
    """

    rank: int
    name: str
    incarnation: int
    address: str
    pid: int
    start_time: int
    pid_namespace: int
    host_id: str
    details: str = ""
    tcp_address: str = ""
    public_key: str = ""

    def addresses_of(self, other: PeerRecord) -> list[str]:
        """List where the other's link may be reached from here, best first.

        On one host that is its own address; two containers of one host may have no
        folder in common, and then it is the one that other hosts use. From another
        host, or with no encryption at one of the two, there may be none at all.
        """
        ways = []
        if self.host_id == other.host_id and self._has_files == other._has_files:
            ways.append(other.address)
        if self.tcp_address and other.tcp_address and other.public_key:
            ways.append(other.tcp_address)
        return list(dict.fromkeys(ways))

    @property
    def _has_files(self) -> bool:
        return self.address != self.tcp_address

    def sees_pids_of(self, other: PeerRecord) -> bool:
        """Say whether a process id of the other means the same process here."""
        return (
            self.host_id == other.host_id and self.pid_namespace == other.pid_namespace
        )

    def sees_end_of(self, other: PeerRecord) -> bool:
        """Say whether the other's process has ended for certain. Reads ``/proc``."""
        if not self.sees_pids_of(other):
            return False
        try:
            pidfd = os.pidfd_open(other.pid)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        try:
            # A process that has ended keeps its number until its parent looks at it.
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            is_other = process_start_time(other.pid) != other.start_time
            return is_other or bool(poller.poll(0))
        finally:
            os.close(pidfd)


def describe_this_process(
    *, rank: int, name: str, incarnation: int, address: str, **others: str
) -> PeerRecord:
    """Make the record of a worker in this process.

    Any thread; reads ``/proc``. Takes what a `PeerRecord` is made of.

    Raises:
        LinkError: When ``/proc`` does not show this process.
    """
    pid = os.getpid()
    start_time = process_start_time(pid)
    if start_time is None:
        raise LinkError(f"/proc/{pid}/stat does not exist: is /proc mounted?")
    return PeerRecord(
        rank=rank,
        name=name,
        incarnation=incarnation,
        address=address,
        pid=pid,
        start_time=start_time,
        pid_namespace=pid_namespace(),
        host_id=host_id(),
        **others,
    )
