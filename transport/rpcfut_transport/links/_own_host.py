"""Under which address others reach this host.

Theory of operation. The own host name is never looked up: it often leads to 127.0.1.1,
which is another machine everywhere else. Instead the kernel is asked from which address
it would send to the host where the workers meet (a UDP socket that is connected sends
nothing). Where that says nothing, because that host is this one, the same is asked
about the rest of the world, and then the interfaces are looked at one by one.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import socket
import struct
from pathlib import Path
from typing import TypeAlias

from rpcfut_transport._errors import LinkError

_log = logging.getLogger(__name__)

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# Set aside for documentation: nobody has them, but there is a route to them.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")
_HOME_NAMES = frozenset({"localhost", "ip6-localhost", "127.0.0.1", "::1"})
_ANY_PORT = 9
_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s4x4s232x")  # name, family and port, address


def choose_host(interface: str | None, toward: str | None) -> str:
    """Choose the address of this host under which others reach it.

    May look up `toward`, if that is a name.

    Args:
        interface: The name or an address of the interface to use, if one is asked for.
        toward: A host that the others reach, too, if one is known. If that is
            ``localhost`` or its address, all are on this host.

    Returns:
        A numeric address. A local one, with a warning, where there is no other.

    Raises:
        LinkError: When there is none at all; lists what was tried.
    """
    tried: list[str] = []
    if interface is not None:
        found = _find_by_interface(interface, tried)
    else:
        found = _find_by_route(toward, tried) or _find_any(tried) or _find_home(tried)
    if found is None:
        raise LinkError(f"this host has no such address. {_describe(tried)}")
    return str(found)


def _find_by_interface(interface: str, tried: list[str]) -> _Address | None:
    number = _numeric(interface)
    if number is not None:
        if _is_own(number):
            return number
        tried.append(f"the address {interface!r}, which no interface here has")
        return None
    owned = [address for name, address in _addresses() if name == interface]
    found = next((a for a in owned if a.is_loopback or _is_reachable(a)), None)
    if found is None:
        tried.append(f"the interface {interface!r}, which has no address, or is none")
    return found


def _find_by_route(toward: str | None, tried: list[str]) -> _Address | None:
    targets = [] if toward is None else _look_up(toward, tried)
    for target in [*targets, *_ELSEWHERE]:
        source = _source_of(target)
        if source is None:
            tried.append(f"the way to {target}: there is none")
        elif _is_reachable(source) or toward in _HOME_NAMES:
            return source
        else:
            tried.append(f"the way to {target}: it starts at {source}, which is local")
    return None


def _find_any(tried: list[str]) -> _Address | None:
    found = next((a for _, a in _addresses() if _is_reachable(a)), None)
    if found is None:
        tried.append("all interfaces: none has an address that is not local")
    return found


def _find_home(tried: list[str]) -> _Address | None:
    found = next((a for _, a in _addresses() if a.is_loopback), None)
    if found is not None:
        _log.warning("no other host can reach this one. %s", _describe(tried))
    return found


def _is_reachable(address: _Address) -> bool:
    # A link-local address of version 6 means nothing without the interface's name.
    is_zoned = address.version == 6 and address.is_link_local
    return not (address.is_loopback or address.is_unspecified or is_zoned)


def _numeric(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _look_up(host: str, tried: list[str]) -> list[str]:
    """All addresses of a host, those of version 4 first: more hosts have them."""
    if _numeric(host) is not None:
        return [host]
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        tried.append(f"{host!r}, whose address is not known: {error}")
        return []
    targets = dict.fromkeys(str(entry[4][0]) for entry in found)
    return sorted(targets, key=lambda target: ":" in target)


def _source_of(target: str) -> _Address | None:
    """From which address this host would send to another; sends nothing."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, _ANY_PORT))
            host = str(probe.getsockname()[0])
    except OSError:
        return None
    return _numeric(host.partition("%")[0])


def _is_own(address: _Address) -> bool:
    """Whether this host can listen at an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return not address.is_unspecified


def _addresses() -> list[tuple[str, _Address]]:
    """All interfaces' names and addresses; those of version 4 come first."""
    return [*_addresses_4(), *_addresses_6()]


def _addresses_4() -> list[tuple[str, _Address]]:
    found: list[tuple[str, _Address]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), b"")
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            found.append((name, ipaddress.IPv4Address(_IFREQ.unpack(answer)[1])))
    return found


def _addresses_6() -> list[tuple[str, _Address]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []  # this kernel has no version 6
    fields = [line.split() for line in lines]
    return [(f[5], ipaddress.IPv6Address(bytes.fromhex(f[0]))) for f in fields]


def _describe(tried: list[str]) -> str:
    known = ", ".join(f"{name} {address}" for name, address in _addresses())
    return (
        f"Tried: {'; '.join(tried)}. Name an interface or one of its addresses with "
        f"interface=; there are: {known or 'none'}"
    )
