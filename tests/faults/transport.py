"""Faults of messages, links and peers."""

from __future__ import annotations

from tests.faults.fault import NOTICED, Fault

ROWS = ("b02", "b11", "b79", "b80", "b82", "b85", "b86", "b92", "b93")

DELIVERY = ("tests/unit/test_field_reports_delivery.py",)
PROCESSES = ("tests/procs/test_delivery.py",)
LOAD = ("tests/conformance/test_links_under_load.py",)
LIMITS = ("tests/conformance/test_links_in_processes.py",)

LINK = "transport/rpcfut_transport/links/_zmq.py"
WAY = "transport/rpcfut_transport/links/_way.py"
LIMIT = "transport/rpcfut_transport/links/_limits.py"
SESSION = "transport/rpcfut_transport/_session.py"
LEDGER = "transport/rpcfut_transport/_ledger.py"
SENDER = "transport/rpcfut_transport/_sender.py"
FILING = "transport/rpcfut_transport/_filing.py"

FAULTS = [
    Fault(
        row="b02",
        what="a loss ends no calls that come while it is worked on",
        path=SESSION,
        old="        peer.state = state\n        peer.reason = reason\n",
        new="        peer.reason = reason\n",
        tests=DELIVERY,
    ),
    Fault(
        row="b11",
        what="of many messages at once the last ones vanish",
        path=FILING,
        old="in split_batch(body):",
        new="in split_batch(body)[:16]:",
        tests=DELIVERY,
    ),
    Fault(
        row="b79",
        what="small frames are sent from where they lie, too",
        path=LINK,
        old="copy=memoryview(frame).nbytes < KEEP_ALIVE_MIN_NBYTES,",
        new='copy=bool(setattr(socket, "copy_threshold", 0)),',
        tests=LOAD,
    ),
    Fault(
        row="b79",
        what="large tensors are sent from where they lie",
        path="rpcfut/_tensor_writer.py",
        old="            frames.add(copy_of(raw_bits(tensor), is_dense=is_dense))\n",
        new='            frames.add(memoryview(raw_bits(tensor).numpy()).cast("B"))\n',
        tests=PROCESSES,
    ),
    Fault(
        row="b80",
        what="what was sent counts as arrived",
        path="rpcfut/_reply.py",
        old='        return f"worker {self.to!r} does not say where it is"\n',
        new='        return f"worker {self.to!r} got it"\n',
        tests=DELIVERY,
    ),
    Fault(
        row="b80",
        what="who is not there holds up what goes to others",
        path=WAY,
        old="        socket.set(zmq.SNDHWM, 0)\n",
        new="        socket.set(zmq.SNDHWM, 1)\n",
        tests=LOAD,
        shows="LinkError",
    ),
    Fault(
        row="b82",
        what="a link waits for ever for messages to leave",
        path=WAY,
        old="                socket.close(linger_ms)\n",
        new="                socket.close(-1)\n",
        tests=LIMITS,
        shows="TimeoutExpired",
    ),
    Fault(
        row="b82",
        what="a link that nobody closed waits for ever when it is collected",
        path=WAY,
        old="        socket.set(zmq.LINGER, LINGER_MS)\n",
        new="",
        tests=LIMITS,
        shows="TimeoutExpired",
    ),
    Fault(
        row="b82",
        what="who leaves waits for its calls, however long it was told to",
        path="rpcfut/_leaving.py",
        old="left_s <= 0",
        new="left_s <= -1e9",
        tests=PROCESSES,
        shows=NOTICED,
    ),
    Fault(
        row="b85",
        what="the messages of two threads leave in another order than they were made",
        path=SENDER,
        old="            with outbox.lock:\n                outbox.number",
        new="            with threading.Lock():\n                outbox.number",
        tests=DELIVERY,
    ),
    Fault(
        row="b86",
        what="what a peer does not read at once is refused",
        path=WAY,
        old="        socket.set(zmq.SNDHWM, 0)\n",
        new="        socket.set(zmq.SNDHWM, 10)\n",
        tests=PROCESSES,
    ),
    Fault(
        row="b92",
        what="a link has as many sockets as ZeroMQ gives it",
        path=LIMIT,
        old="    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)\n",
        new="",
        tests=LIMITS,
        shows="LinkError",
    ),
    Fault(
        row="b92",
        what="nobody looks whether there are files left",
        path=LIMIT,
        old="    if lowest_free + way_count + _FILES_TO_COME >= limit:\n",
        new="    if lowest_free < 0:\n",
        tests=LIMITS,
    ),
    Fault(
        row="b92",
        what="the soft limit of files stays what it is",
        path=LIMIT,
        old="        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))\n",
        new="        pass\n",
        tests=LIMITS,
    ),
    Fault(
        row="b93",
        what="a restarted peer is refused",
        path=SESSION,
        old="        if known.state is PeerState.ALIVE:\n",
        new="        if known.state is not None:\n",
        tests=PROCESSES,
        shows="LocalProtocolError",
    ),
    Fault(
        row="b93",
        what="calls go to the earlier life",
        path=LEDGER,
        old="            incarnation = session.require_alive(rank).incarnation\n",
        new="            incarnation = session.require_alive(rank).incarnation\n"
        '            incarnation = vars(self).setdefault("_first_life", incarnation)\n',
        tests=PROCESSES,
    ),
]
