"""Whatever a call ends with, one answer is sent (RPC-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rpcfut._dispatch import Dispatcher
from rpcfut._encode import encode
from rpcfut._error_codec import decode_error
from rpcfut._errors import RpcError
from rpcfut._exposed import ExposedTable
from rpcfut._placement import Placement
from rpcfut._serving import ServedCall
from rpcfut._watcher import DeviceWatcher
from rpcfut.testing import local_cluster
from rpcfut.transport import Admission, IncomingCall, MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut_transport import Buffer


def run(task: Callable[[], None]) -> None:
    task()


def nothing(_served: ServedCall) -> None:
    """Nobody waits for the end of the call."""


class HostileError(Exception):
    """Answers no question about itself."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit

    __str__ = __repr__ = __getattribute__  # type: ignore[assignment]
    __context__ = 5  # type: ignore[assignment]


def fail_hostile() -> None:
    raise HostileError


class RecordedReplies:
    """Stands for the endpoint, and keeps what it should send."""

    def __init__(self) -> None:
        self.errors: list[Buffer] = []
        self.rooms = self

    def start(self, _: object, *, is_cancelled: bool) -> Admission:
        return Admission.STARTS

    def reply(self, _: object, *, is_error: bool, body: Buffer, buffers: Any) -> None:
        assert is_error
        self.errors.append(body)


def call_of(table: ExposedTable) -> IncomingCall:
    nobody: Any = None
    body, _ = encode([table.name_of(fail_hostile), [], {}], stage=nobody)
    return IncomingCall(
        call_id=1,
        sender_rank=0,
        sender_incarnation=1,
        deadline_s=None,
        body=memoryview(body),
        buffers=[],
    )


@pytest.fixture
def table() -> ExposedTable:
    exposed = ExposedTable()
    exposed.expose(fail_hostile)
    return exposed


@pytest.fixture
def watcher() -> Iterator[DeviceWatcher]:
    watcher = DeviceWatcher("w")
    yield watcher
    watcher.close(1.0)


def test_an_error_that_answers_nothing_is_answered(table) -> None:
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        with pytest.raises(RpcError, match="its __str__ raised") as caught:
            alice.rpc_sync("bob", fail_hostile, timeout=10)
        assert caught.value.type_name.endswith("HostileError")


@pytest.mark.parametrize("level", ["DEBUG", "WARNING"])
def test_an_error_that_cannot_be_encoded_is_answered_and_logged(
    table, watcher, caplog, level
) -> None:
    """The name of a worker that is no text stands for any defect of the encoder."""
    caplog.set_level(level, "rpcfut.dispatch")
    replies: Any = RecordedReplies()
    placement = Placement("w")
    served = ServedCall("caller", None, MonotonicClock())
    nobody: Any = None
    Dispatcher(nobody, replies, table, watcher, placement, run).serve(
        call_of(table), served, nothing
    )
    (reply,) = replies.errors
    assert "that worker's log says more" in str(decode_error(reply))
    assert "its error could not be encoded: TypeError" in caplog.text


def test_a_hostile_error_does_not_break_the_debug_log(table, watcher, caplog) -> None:
    caplog.set_level("DEBUG", "rpcfut.dispatch")
    replies: Any = RecordedReplies()
    placement = Placement("w")
    served = ServedCall("caller", None, MonotonicClock())
    Dispatcher("w", replies, table, watcher, placement, run).serve(
        call_of(table), served, nothing
    )
    assert len(replies.errors) == 1
    assert "<its __repr__ raised>" in caplog.text
