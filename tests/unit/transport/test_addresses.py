"""Addresses are written in one way, and chosen so that others can use them."""

from __future__ import annotations

import ipaddress
import logging
import socket

import pytest

from rpcfut_transport import LinkError
from rpcfut_transport.links import _own_host
from rpcfut_transport.links._address import parse_tcp_address, tcp_address
from rpcfut_transport.links._own_host import choose_host


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.1", "tcp://10.0.0.1:5"), ("fd00::1", "tcp://[fd00::1]:5")],
)
def test_b91_one_helper_knows_of_brackets(host: str, address: str) -> None:
    """B91: what it writes is what it reads."""
    assert tcp_address(host, 5) == address
    assert parse_tcp_address(address) == (host, 5)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://",
        "tcp://10.0.0.1",
        "tcp://10.0.0.1:0",
        "tcp://10.0.0.1:65536",
        "tcp://10.0.0.1:5;10.0.0.2:6",
        "tcp://10.0.0.1:5/x",
        "tcp://eth0:5",
        "tcp://example.com:5",
        "tcp://0.0.0.0:5",
        "tcp://[::]:5",
        "tcp://224.0.0.1:5",
        "tcp://*:5",
        "tcp://fd00::1:5",
        "tcp://[fd00:0::1]:5",
        "tcp://[fe80::1%eth0]:5",
        "tcp://010.0.0.1:5",
        "tcp://256.0.0.1:5",
        "tcp://10.0.0.1:5\n",
        "tcp://10.0.0.1:\N{ARABIC-INDIC DIGIT FIVE}",
        "ipc:///tmp/x",
        "inproc://x",
    ],
)
def test_what_is_no_number_of_one_host_is_no_address(address: str) -> None:
    """Nothing is looked up for a record, and one address has one spelling (RPC-10)."""
    with pytest.raises(LinkError, match="wanted one like 'tcp:"):
        parse_tcp_address(address)


class Machine:
    """A host whose routes, names and interfaces a test makes up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.routes: dict[str, str] = {}
        self.names: dict[str, list[str]] = {}
        self.interfaces: list[tuple[str, str]] = [("lo", "127.0.0.1")]
        monkeypatch.setattr(_own_host, "_source_of", self.source_of)
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)
        monkeypatch.setattr(_own_host, "_addresses", self.addresses)

    def source_of(self, target: str) -> object:
        source = self.routes.get(target)
        return None if source is None else ipaddress.ip_address(source)

    def look_up(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (name, port)) for name in self.names[host]]

    def addresses(self) -> list[tuple[str, object]]:
        return [(name, ipaddress.ip_address(a)) for name, a in self.interfaces]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_the_address_is_the_one_that_leads_to_where_the_workers_meet(
    machine: Machine,
) -> None:
    """A host with two networks listens on the one that the job uses."""
    machine.names["head"] = ["10.1.0.1"]
    machine.routes = {"10.1.0.1": "10.1.0.7", "198.51.100.1": "192.168.0.7"}
    assert choose_host(None, "head") == "10.1.0.7"
    assert choose_host(None, None) == "192.168.0.7"


def test_b94_a_host_whose_name_leads_to_127_0_1_1_does_not_publish_that(
    machine: Machine,
) -> None:
    """B94: rank 0 is told to meet at its own name."""
    machine.names["head"] = ["127.0.1.1"]
    machine.routes = {"127.0.1.1": "127.0.0.1", "198.51.100.1": "10.1.0.1"}
    assert choose_host(None, "head") == "10.1.0.1"


def test_b94_without_a_default_route_an_interface_is_found(machine: Machine) -> None:
    """B94: hosts in a closed network have none."""
    machine.names["head"] = ["127.0.1.1"]
    machine.routes = {"127.0.1.1": "127.0.0.1"}
    machine.interfaces += [("eth0", "10.1.0.1"), ("eth0", "fe80::1")]
    assert choose_host(None, "head") == "10.1.0.1"


def test_a_link_local_address_is_not_published(machine: Machine) -> None:
    """It means nothing without the name of an interface of the one who reads it."""
    machine.names["head"] = ["fe80::9"]
    machine.routes = {"fe80::9": "fe80::1", "2001:db8::1": "fd00::7"}
    assert choose_host(None, "head") == "fd00::7"


def test_b91_a_host_with_version_6_only_is_found(machine: Machine) -> None:
    """B91: a name with an AAAA record only."""
    machine.names["head"] = ["fd00::1"]
    machine.routes = {"fd00::1": "fd00::7"}
    assert choose_host(None, "head") == "fd00::7"


def test_b91_version_4_is_taken_where_there_are_both(machine: Machine) -> None:
    """B91: more hosts have it."""
    machine.names["head"] = ["fd00::1", "10.1.0.1"]
    machine.routes = {"fd00::1": "fd00::7", "10.1.0.1": "10.1.0.7"}
    assert choose_host(None, "head") == "10.1.0.7"


@pytest.mark.parametrize("home", ["127.0.0.1", "::1", "localhost"])
def test_who_meets_at_home_listens_at_home(machine: Machine, home: str) -> None:
    """All are on this host then; nothing need be open to others."""
    there = "::1" if home == "::1" else "127.0.0.1"
    machine.names[home] = [there]
    machine.routes = {there: there, "198.51.100.1": "10.1.0.7"}
    assert choose_host(None, home) == there


def test_a_host_without_a_network_listens_at_home_and_says_what_was_tried(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers can still be of one group."""
    with caplog.at_level(logging.WARNING):
        assert choose_host(None, "nowhere") == "127.0.0.1"
    for tried in ("'nowhere'", "198.51.100.1", "2001:db8::1", "all interfaces", "lo"):
        assert tried in caplog.text


def test_an_interface_is_asked_for_by_name_or_by_address(machine: Machine) -> None:
    """Its address is the own one; others' are refused."""
    machine.interfaces += [("ib0", "10.2.0.1"), ("ib0", "fd00::2")]
    assert choose_host("ib0", None) == "10.2.0.1"
    assert choose_host("lo", None) == "127.0.0.1"
    assert choose_host("127.0.0.1", "elsewhere") == "127.0.0.1"


@pytest.mark.parametrize(
    "interface", ["eth7", "203.0.113.7", "0.0.0.0", "::", "fe80::1"]
)
def test_an_interface_that_is_not_here_lists_those_that_are(
    machine: Machine, interface: str
) -> None:
    """B94: whoever reads it need not log in to find the right one."""
    machine.interfaces.append(("eth0", "10.1.0.1"))
    with pytest.raises(LinkError, match=r"lo 127\.0\.0\.1, eth0 10\.1\.0\.1") as caught:
        choose_host(interface, None)
    assert interface in str(caught.value)


def test_the_real_machine_has_a_loopback_interface() -> None:
    """The kernel's own lists are read right."""
    found = dict(_own_host._addresses())
    assert "lo" in found
    assert choose_host("lo", None) in {"127.0.0.1", "::1"}
    assert choose_host(None, "127.0.0.1") == "127.0.0.1"
