"""Pool streams: few, private, never waited for, the last released first (STR-3)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from rpcfut._stream_pool import LIMIT, StreamPool
from tests.support.fake_seam import FAKE0, FAKE1, FakeSeam, FakeStream, installed
from tests.support.threads import run_together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._devices import Device


@pytest.fixture
def seam() -> Iterator[FakeSeam]:
    """The fake device."""
    with installed() as fake:
        yield fake


def test_the_stream_released_last_is_handed_out_first(seam: FakeSeam) -> None:
    """Its queue is the likeliest to be warm and short."""
    pool = StreamPool()
    leases = [pool.lease(FAKE0) for _ in range(3)]
    assert [stream for stream, _ in leases] == seam.created
    for _, release in leases:
        release()
    assert [pool.lease(FAKE0)[0] for _ in range(3)] == seam.created[::-1]
    assert len(seam.created) == 3


def test_each_device_has_streams_of_its_own(seam: FakeSeam) -> None:
    """A free stream of another device is of no use."""
    pool = StreamPool()
    pool.lease(FAKE0)[1]()
    assert pool.lease(FAKE1)[0].device == FAKE1
    assert repr(pool) == "<StreamPool free/all: {'fake:0': '1/1', 'fake:1': '0/1'}>"
    assert len(seam.created) == 2


def test_from_the_limit_on_streams_are_shared(seam: FakeSeam) -> None:
    """Nobody waits for a stream; all get their share, and owners keep theirs."""
    pool = StreamPool(limit=3)
    owners = [pool.lease(FAKE0) for _ in range(3)]
    shared = [pool.lease(FAKE0) for _ in range(6)]
    assert len(seam.created) == 3
    assert {stream for stream, _ in shared} == set(seam.created)
    for _, release in shared:
        release()
    assert repr(pool) == "<StreamPool free/all: {'fake:0': '0/3'}>"
    owners[1][1]()
    assert pool.lease(FAKE0)[0] is owners[1][0]


class _SlowSeam(FakeSeam):
    """A driver that takes its time, so that many threads are in it at once."""

    def create_stream(self, device: Device) -> FakeStream:
        """A new stream, after a while."""
        threading.Event().wait(0.001)
        return super().create_stream(device)


def test_threads_that_come_at_once_do_not_pass_the_limit() -> None:
    """32 streams a device, whoever asks when."""
    with installed(_SlowSeam()) as seam:
        pool = StreamPool()

        def lease() -> None:
            for _ in range(10):
                pool.lease(FAKE0)

        assert run_together(*[lease] * 16) == [None] * 16
        assert len(seam.created) == LIMIT == 32


def test_a_device_that_cannot_make_a_stream_leaves_the_pool_as_it_was(
    seam: FakeSeam,
) -> None:
    """The error is the caller's; the next one may be luckier."""
    pool = StreamPool(limit=1)
    seam.fails_in = "create_stream"
    with pytest.raises(OSError, match="the device failed"):
        pool.lease(FAKE0)
    seam.fails_in = None
    assert pool.lease(FAKE0)[0] in seam.created
