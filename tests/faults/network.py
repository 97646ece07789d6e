"""Faults of keys, addresses and ports."""

from __future__ import annotations

from tests.faults.fault import Fault

ROWS = ("b89", "b90", "b91", "b94", "b102", "b136")

NETWORKS = ("tests/conformance/test_networks.py",)
ADDRESSES = ("tests/unit/transport/test_addresses.py",)
HOSTS = ("tests/procs/test_network.py",)

LINKS = "transport/rpcfut_transport/links"
DOOR = f"{LINKS}/_door.py"
NETWORK = f"{LINKS}/_network.py"

FAULTS = [
    Fault(
        row="b89",
        what="a wrong key of the peer looks like a host that is down",
        path=f"{LINKS}/_handshake.py",
        old="        return self._hangups >= _MANY and",
        new="        return self._hangups < 0 and",
        tests=(*NETWORKS, "tests/unit/transport/test_handshake.py"),
        shows="Empty|AssertionError|ValueError",
    ),
    Fault(
        row="b89",
        what="something that is no worker looks like a host that is down",
        path=f"{LINKS}/_monitor.py",
        old='is no worker")\n',
        new='is no worker") if self._is_closed else None\n',
        tests=NETWORKS,
        shows="Empty",
    ),
    Fault(
        row="b89",
        what="one whose key is not known is never told",
        path=DOOR,
        old="            elif self._is_strict and",
        new="            elif self._is_closed and",
        tests=NETWORKS,
        shows="Empty",
    ),
    Fault(
        row="b89",
        what="a worker with another secret waits for the others",
        path="rpcfut/_secret.py",
        old='        nonce, _, mac = proof.partition(b":")\n',
        new='        return\n        nonce, _, mac = proof.partition(b":")\n',
        tests=HOSTS,
    ),
    Fault(
        row="b90",
        what="any key is let in",
        path=DOOR,
        old="            if asked.key in self._ranks or",
        new="            if asked.key or",
        tests=NETWORKS,
    ),
    Fault(
        row="b90",
        what="who does not encrypt is let in",
        path=NETWORK,
        old="        inbox.set(zmq.CURVE_SERVER, 1)\n",
        new="        self.accepts = lambda *_: True\n"
        "        self.address = tcp_address(self._host, self._bind(inbox))\n"
        "        return\n",
        tests=HOSTS,
    ),
    Fault(
        row="b91",
        what="an address of version 6 has no brackets",
        path=f"{LINKS}/_address.py",
        old='    return f"tcp://[{host}]:{port}" if ":" in host else',
        new='    return f"tcp://{host}:{port}" if ":" in host else',
        tests=ADDRESSES,
    ),
    Fault(
        row="b91",
        what="version 6 is off, as ZeroMQ has it",
        path=NETWORK,
        old='        inbox.set(zmq.IPV6, ":" in self._host)\n',
        new="",
        tests=NETWORKS,
        shows="LinkError",
    ),
    Fault(
        row="b91",
        what="who connects knows version 4 only",
        path=f"{LINKS}/_way.py",
        old='        socket.set(zmq.IPV6, ":" in host)\n',
        new="",
        tests=NETWORKS,
        shows="LinkError|assert",
    ),
    Fault(
        row="b94",
        what="what the own name leads to is published",
        path=f"{LINKS}/_own_host.py",
        old="    return not (address.is_loopback or",
        new="    return not (",
        tests=ADDRESSES,
    ),
    Fault(
        row="b94",
        what="an address that only its own host reaches is not noticed",
        path="rpcfut/_reach.py",
        old="        if _is_local(one.tcp_address):\n",
        new="        if not one.tcp_address:\n",
        tests=HOSTS,
    ),
    Fault(
        row="b102",
        what="any port is used",
        path=NETWORK,
        old="        if self._ports is None:\n",
        new="        if self._ports is not self:\n",
        tests=NETWORKS,
    ),
    Fault(
        row="b136",
        what="what comes is unpickled, and if that fails it is something else",
        path="transport/rpcfut_transport/_filing.py",
        old="            header, body = decode_message(frames)\n"
        "            if header.kind is Kind.BATCH",
        new="            import pickle, contextlib\n"
        "            with contextlib.suppress(Exception):\n"
        "                pickle.loads(frames[-1])\n"
        "            header, body = decode_message(frames)\n"
        "            if header.kind is Kind.BATCH",
        tests=HOSTS,
    ),
]
