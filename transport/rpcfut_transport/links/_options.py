"""How a link on ZeroMQ listens."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpcfut_transport._patience import Patience

_KEY_NBYTES = 32
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Where a link listens for other hosts. All that goes there is encrypted.

    Args:
        group_key: 32 bytes that only the members of the group know. Who shows it may
            introduce itself.
        interface: Name or address of the interface to listen on; by default the one
            that leads to `toward`.
        ports: The first and the last port that may be used; by default any.
        toward: A host that all members reach, such as the one where they meet.
    """

    group_key: bytes = field(repr=False)
    interface: str | None = None
    ports: tuple[int, int] | None = None
    toward: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.group_key, bytes) or len(self.group_key) != _KEY_NBYTES:
            raise ValueError(f"group_key must be {_KEY_NBYTES} bytes")
        check_interface(self.interface)
        check_ports(self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How a link on ZeroMQ listens.

    Args:
        network: Where it listens for other hosts; by default it does not.
        uses_files: Whether it listens on, and reaches others through, a socket in the
            file system. Without that, those on this host are reached as if they were on
            another.
        patience: When a silent peer shows.
    """

    network: NetworkOptions | None = None
    uses_files: bool = True
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if self.network is None and not self.uses_files:
            raise ValueError("a link needs files or a network to listen on")


def check_interface(interface: object) -> None:
    """Check what was given as ``interface=``.

    Raises:
        ValueError: When it is no name and no address.
    """
    if interface is not None and not (isinstance(interface, str) and interface):
        raise ValueError(
            "interface must be the name or an address of one, as 'eth0' or '10.0.0.1', "
            f"got {interface!r}"
        )


def check_ports(ports: object) -> None:
    """Check what was given as ``ports=``.

    Raises:
        ValueError: When it is no range of ports.
    """
    good = ports is None or (
        isinstance(ports, tuple)
        and len(ports) == 2
        and all(type(port) is int for port in ports)
        and 0 < ports[0] <= ports[1] <= _MAX_PORT
    )
    if not good:
        raise ValueError(
            "ports must be the first and the last port that may be used, as "
            f"(29500, 29599), got {ports!r}"
        )
