"""Whether two workers can reach each other, and what to do if not."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rpcfut._secret import WAYS
from rpcfut_transport import LinkError

if TYPE_CHECKING:
    from rpcfut_transport import PeerRecord


def require_reachable(mine: PeerRecord, other: PeerRecord) -> None:
    """Check that a way leads from one worker to another, as far as records say.

    Raises:
        LinkError: When none does; says why.
    """
    if mine.host_id == other.host_id:
        if not mine.addresses_of(other):
            raise LinkError(
                f"worker {other.name!r} (rank {other.rank}) and {mine.name!r} are on "
                "one host, but one of them uses no files, and not both have a secret: "
                f"{WAYS}"
            )
        return
    if not mine.addresses_of(other):
        raise LinkError(
            f"worker {other.name!r} (rank {other.rank}) is on another host than "
            f"{mine.name!r} (rank {mine.rank}). Workers of several hosts need a "
            f"secret: {WAYS}"
        )
    for one in (mine, other):
        if _is_local(one.tcp_address):
            raise LinkError(
                f"workers {mine.name!r} at {mine.tcp_address} and {other.name!r} at "
                f"{other.tcp_address} are on two hosts, but no other host reaches "
                f"{one.name!r}; name an interface or an address of its host with "
                "init_rpc(interface=...) there"
            )


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # the link refuses it
