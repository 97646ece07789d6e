"""How TCP addresses are written and read: the one place that knows about brackets."""

from __future__ import annotations

import ipaddress
import re

from rpcfut_transport._errors import LinkError

_PATTERN = re.compile(r"tcp://(?:\[([0-9a-f:.]{2,45})\]|([0-9.]{7,15})):([0-9]{1,5})")
_MAX_PORT = 65535


def tcp_address(host: str, port: int | str) -> str:
    """Write an address; the port may be ``*`` where any will do."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse_tcp_address(address: str) -> tuple[str, int]:
    """Take an address apart; hostile input. Names are refused: nothing is looked up.

    Returns:
        A numeric host, without brackets, and a port.

    Raises:
        LinkError: When it is none, or stands for more than one host.
    """
    match = _PATTERN.fullmatch(address)
    if match is not None:
        host, port = match[1] or match[2], int(match[3])
        if _is_one_host(host) and 0 < port <= _MAX_PORT:
            return host, port
    raise LinkError(
        f"got the address {address[:200]!r}, wanted one like 'tcp://10.0.0.1:29500' or "
        "'tcp://[fd00::1]:29500'"
    )


def is_tcp(address: str) -> bool:
    """Whether an address says that it is one of TCP."""
    return address.startswith("tcp://")


def _is_one_host(host: str) -> bool:
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (number.is_unspecified or number.is_multicast) and str(number) == host
