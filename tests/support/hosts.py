"""Two hosts on one machine: network namespaces, joined by a cable.

A namespace is entered by the thread that asks for it, and by those that it starts
afterwards; so a child process enters before it does anything else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import rpcfut_transport._peers

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_ALL_PROTOCOLS = 3
_SO_RCVBUFFORCE = 33
_TIMEOUT_S = 20


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def why_no_namespaces() -> str:
    """Why two hosts cannot be made here; empty if they can."""
    if os.getuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "there is no command `ip`"
    name = f"rf-probe-{os.getpid()}"
    made = _run("ip", "netns", "add", name)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    cable = _run(
        *("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "eth1")
    )
    _run("ip", "netns", "delete", name)
    return f"no cable can be made: {cable.stderr}" if cable.returncode else ""


class Cable:
    """Two namespaces, ``names``, with addresses ``10.77.0.1`` and ``.2`` and so on.

    Args:
        names: Of the namespaces.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names

    def address(self, number: int, version: int = 4) -> str:
        """The address of one of the two."""
        return f"10.77.0.{number + 1}" if version == 4 else f"fd77::{number + 1}"

    def run(self, number: int, *command: str) -> None:
        """Run ``ip`` or ``tc`` in one of the two."""
        done = _run("ip", "netns", "exec", self.names[number], *command)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    @contextmanager
    def overhear(self, number: int) -> Iterator[list[bytes]]:
        """Collect all that goes over the cable, as seen at one of its ends."""
        heard: list[bytes] = []
        ready, enough = threading.Event(), threading.Event()

        def listen() -> None:
            _enter_network(self.names[number])
            with socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)
            ) as ear:
                ear.settimeout(0.1)
                # Else what comes while this thread waits for a processor is lost.
                ear.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
                ready.set()
                while not enough.is_set():
                    with suppress(TimeoutError):
                        heard.append(ear.recv(1 << 16))

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert ready.wait(_TIMEOUT_S)
            yield heard
        finally:
            enough.set()
            listener.join(_TIMEOUT_S)


@contextmanager
def two_hosts() -> Iterator[Cable]:
    """Make two namespaces that reach each other and nothing else."""
    names = (f"rf-{os.getpid()}-0", f"rf-{os.getpid()}-1")
    cable = Cable(names)
    try:
        for name in names:
            assert _run("ip", "netns", "add", name).returncode == 0
        made = _run(
            *("ip", "-n", names[0], "link", "add", "eth0", "type", "veth"),
            *("peer", "name", "eth0", "netns", names[1]),
        )
        assert made.returncode == 0, made.stderr
        for number in range(2):
            four, six = cable.address(number), cable.address(number, 6)
            cable.run(number, "ip", "link", "set", "lo", "up")
            cable.run(number, "ip", "addr", "add", f"{four}/24", "dev", "eth0")
            cable.run(number, "ip", "addr", "add", f"{six}/64", "dev", "eth0", "nodad")
            cable.run(number, "ip", "link", "set", "eth0", "up")
        yield cable
    finally:
        for name in names:
            _run("ip", "netns", "delete", name)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter_network(name: str) -> None:
    with Path("/run/netns", name).open() as file:
        _check(_libc().setns(file.fileno(), _CLONE_NEWNET))


def enter(name: str, hosts: dict[str, str] | None = None, host_name: str = "") -> None:
    """Become a process of another host: its network, its identity, and its names.

    Args:
        name: The network namespace.
        hosts: What ``/etc/hosts`` says there, names to addresses.
        host_name: What the host is called there.
    """
    _enter_network(name)
    if hosts is not None:
        _check(_libc().unshare(_CLONE_NEWNS | _CLONE_NEWUTS))
        socket.sethostname(host_name)
        text = "".join(f"{address} {who}\n" for who, address in hosts.items())
        ours = Path(f"/tmp/rf-hosts-{os.getpid()}")
        assert _run("mount", "--make-rprivate", "/").returncode == 0
        ours.write_text(text)
        assert _run("mount", "--bind", str(ours), "/etc/hosts").returncode == 0
        ours.unlink()
    rpcfut_transport._peers.host_id = lambda: f"host of {name}"
