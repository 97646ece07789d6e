"""Messages to peers that do not read them, and peers that come back.

Rows B79, B82, B86, B93.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rpcfut_transport import PeerLost, ZmqLink
from rpcfut_transport.links._inbox_folder import sweep
from tests.support import delivery
from tests.support.group import children, run_group
from tests.support.links import (
    PATIENCE_S,
    EchoHandler,
    RecordingSink,
    serve_until_told,
    start_collector_of_zmq,
    start_endpoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut_transport import PeerRecord


@pytest.fixture(scope="module", autouse=True)
def _collector_of_zmq() -> None:
    start_collector_of_zmq()


@pytest.mark.timeout(120)
def test_b86_calls_to_a_stopped_peer_all_end_when_it_goes_on() -> None:
    """B86: 5,000 of them; none is dropped because its peer does not read."""
    sums, _ = run_group(delivery.call_while_it_is_stopped, 2, 5000)
    assert sums == [number + 1 for number in range(5000)]


@pytest.mark.timeout(120)
def test_b79_what_is_written_after_a_call_does_not_reach_a_stopped_peer() -> None:
    """B79: a large tensor, a text and a small tensor, written to at once (STR-8)."""
    whole, _ = run_group(delivery.overwrite_while_it_is_stopped, 2, 20)
    assert whole == [True] * 20


@pytest.mark.timeout(120)
def test_b82_who_leaves_does_not_wait_for_one_that_does_not_read() -> None:
    """B82: the calls end, the process does, and its exit code is its own."""
    with children(delivery.leave_one_that_does_not_read, 2) as group:
        assert group[0].result(60) == {"LifecycleError"}
        group[0].process.join(PATIENCE_S)
        assert group[0].process.exitcode == 0
    sweep(tempfile.gettempdir())  # what w1, which was killed, could not remove


@contextmanager
def _life(
    rank: int, incarnation: int, other: PeerRecord, *, echoes: bool
) -> Iterator[PeerRecord]:
    """A process that is one life of a worker; killed at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve_until_told,
        args=(theirs, rank, [other]),
        kwargs={"echoes": echoes, "incarnation": incarnation},
    )
    process.start()
    try:
        assert ours.poll(PATIENCE_S)
        yield ours.recv()
    finally:
        process.kill()
        process.join(PATIENCE_S)
        ours.close()
        theirs.close()


@pytest.mark.timeout(90)
def test_b93_a_restarted_peer_is_called_again_and_its_old_calls_fail() -> None:
    """B93: thrice; nothing of an earlier life is in the way of the next."""
    handler = EchoHandler()
    endpoint = start_endpoint(0, ZmqLink(), handler)
    try:
        for incarnation in (1, 2, 3):
            with _life(1, incarnation, endpoint.record, echoes=True) as record:
                endpoint.add_peer(record)
                sinks = [RecordingSink() for _ in range(5)]
                for number, sink in enumerate(sinks):
                    endpoint.call(1, None, sink, b"%d" % number)
                for number, sink in enumerate(sinks):
                    assert sink.wait() == ("result", (b"%d" % number, []))
                delivery.stop(record.pid)
                old = [RecordingSink() for _ in range(5)]
                for sink in old:
                    endpoint.call(1, None, sink, b"never read")
                os.kill(record.pid, signal.SIGKILL)
            for sink in old:
                how, error = sink.wait()
                assert how == "lost"
                assert isinstance(error, PeerLost)
                assert len(sink.ends) == 1
            assert handler.losses.get(timeout=PATIENCE_S)[0] == 1
    finally:
        endpoint.close()
