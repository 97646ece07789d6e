"""FUT-10: explain; FUT-2: waits that could never end are refused."""

from __future__ import annotations

import _thread
import queue
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import DeadlockError, Future, as_completed, collect_all, wait_all
from rpcfut._call_info import PendingCall
from rpcfut._callbacks import isolated_runtime
from rpcfut._future_binding import bind_call
from tests.support.fake_seam import FAKE0, FakeArray, FakeSeam, installed
from tests.support.threads import Gate, Running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def seam() -> Iterator[FakeSeam]:
    """Two fake devices."""
    with installed() as fake:
        yield fake


def lines(future: Future[Any]) -> list[str]:
    """What explain says, without ages, and with this file's name shortened."""
    text = re.sub(r"\d+\.\d{3} s", "T s", future.explain())
    return re.sub(re.escape(__file__) + r":\d+", "HERE", text).split("\n")


def test_a_pending_future_waits_for_somebody() -> None:
    """Who made it, and when."""
    assert lines(Future()) == [
        "<rpcfut.Future pending>: made at HERE, T s ago",
        "  waits for somebody to call set_result, set_exception or cancel",
    ]


class RunningCall(PendingCall):
    """A call that is said to run."""

    def ask(self, _patience_s: float) -> str:
        return "there it runs"


def test_a_call_waits_for_its_worker() -> None:
    """With the function and the place of the call."""
    future = Future[Any]()
    bind_call(
        future, RunningCall(worker="a", to="b", function="step", site="train.py:12")
    )
    first, second, third_line = lines(future)
    assert first.endswith("call step on worker 'b', called at train.py:12, T s ago")
    assert second == "  waits for the answer of worker 'b'"
    assert third_line == "  there it runs"


def third(_future: Any) -> None:
    """A callback with a name."""


def test_a_child_waits_for_its_callback_and_its_parent() -> None:
    """How many come before it, and what the parent waits for."""
    parent: Future[int] = Future()
    parent.then(lambda _: 1)
    parent.add_done_callback(lambda _: None)
    assert lines(parent.then(third)) == [
        "<rpcfut.Future pending>: made at HERE, T s ago",
        "  waits for its callback third(), queued, behind 2 others on",
        "    <rpcfut.Future pending, 3 callbacks>: made at HERE, T s ago",
        "      waits for somebody to call set_result, set_exception or cancel",
    ]


def test_then_may_be_all_that_a_thread_runs() -> None:
    """No frame outside the library registered the callback; it runs all the same."""
    future: Future[int] = Future()
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    future.set_result(1)
    _thread.start_new_thread(future.then, (lambda f: seen.put(f.value()),))
    _thread.start_new_thread(future.add_done_callback, (lambda f: seen.put(2),))
    assert {seen.get(timeout=10), seen.get(timeout=10)} == {1, 2}


def test_a_timeout_says_the_same() -> None:
    """So that a hang is a message."""
    parent: Future[int] = Future()
    with pytest.raises(TimeoutError, match="waits for its callback third"):
        parent.then(third).wait(0)


def test_a_child_of_a_dropped_parent_will_never_be_done() -> None:
    """It says so."""
    assert lines(Future[int]().then(third))[1] == (
        "  nobody will ever complete it: what it waited for was dropped"
    )


def test_a_callback_that_runs_is_named_with_its_thread() -> None:
    """Also to those that are queued behind it."""
    parent: Future[int] = Future()
    entered, may_go_on = Gate(), Gate()

    def slow(_parent: Any) -> None:
        entered.set()
        may_go_on.pass_through()

    running, queued = parent.then(slow), parent.then(third)
    setter = Running(lambda: parent.set_result(1))
    entered.pass_through()
    expected = r"slow\(\), registered at HERE, runs since T s on thread 'Thread-"
    assert re.search(expected, lines(running)[1])
    assert lines(queued)[1] == "  waits for its callback third(), queued on"
    assert re.search("before it, .*" + expected, lines(queued)[-1])
    may_go_on.set()
    setter.result()


def test_a_callback_that_waits_for_its_lane_says_so() -> None:
    """Callbacks of one stream run one at a time (STR-3)."""
    entered, may_go_on = Gate(), Gate()

    def slow(_parent: Any) -> None:
        entered.set()
        may_go_on.pass_through()

    host = rpcfut.stream("cpu")
    first, second = Future[int](), Future[int]()
    running, waiting = first.then(slow, stream=host), second.then(third, stream=host)
    setter = Running(lambda: first.set_result(1))
    entered.pass_through()
    second.set_result(2)
    assert lines(waiting)[1] == (
        "  its callback third() waits for its turn on its stream, since T s"
    )
    may_go_on.set()
    setter.result()
    running.wait(10)
    waiting.wait(10)


def test_a_child_whose_callback_returned_a_future_waits_for_that() -> None:
    """Not for the callback any more."""
    inner: Future[int] = Future()
    parent: Future[int] = Future()
    child = parent.then(lambda _: inner)
    parent.set_result(1)
    assert lines(child)[1:3] == [
        "  its callback returned a future; waits for that:",
        "    <rpcfut.Future pending>: made at HERE, T s ago",
    ]


def test_a_group_names_some_of_its_members() -> None:
    """Only those that are pending, and not a thousand."""
    members = [Future[int]() for _ in range(6)]
    members[0].set_result(1)
    text = lines(collect_all(members))
    assert [line.strip() for line in text].count("waits for its member") == 3
    assert text[-1] == "  waits for 2 more members"


def test_a_long_chain_is_cut() -> None:
    """A hundred parents are no hundred lines."""
    future: Future[int] = Future()
    parents = [future]
    for _ in range(100):
        future = future.then(lambda f: f.value())
        parents.append(future)
    assert lines(future)[-1].strip() == "and so on"
    assert len(lines(future)) < 20


def test_a_done_future_names_the_devices_that_still_work(seam: FakeSeam) -> None:
    """Done on the host is not done on the device."""
    future: Future[FakeArray] = Future()
    future.set_result(FakeArray(FAKE0))
    assert lines(future)[1:] == ["  done on the host; waits for fake:0"]
    future._marks[0].event.passed.set()  # type: ignore[attr-defined]
    assert len(lines(future)) == 1


# ---- deadlocks ----------------------------------------------------------------------


def in_callback(parent: Future[Any], function: Any) -> Any:
    """Run a function in a callback of a future that gets done now."""
    child = parent.then(lambda _: function())
    setter = Running(lambda: parent.set_result(1))
    setter.result()
    return child


@pytest.mark.parametrize("read", ["wait", "grandchild", "wait_all", "as_completed"])
def test_a_wait_for_what_is_queued_behind_the_running_callback_is_refused(
    read: str,
) -> None:
    """It would hang for ever; the message has two ways out (FUT-2)."""
    parent: Future[Any] = Future()
    box: list[Future[Any]] = []
    reads = {
        "wait": lambda: box[0].wait(),
        "grandchild": lambda: box[0].then(third).wait(),
        "wait_all": lambda: wait_all(box),
        "as_completed": lambda: list(as_completed(box)),
    }
    first = parent.then(lambda _: reads[read]())
    box.append(parent.then(third))
    Running(lambda: parent.set_result(1)).result()
    error = first.exception(10)
    assert isinstance(error, DeadlockError)
    assert "queued behind" in str(error)
    assert "return the future from the callback" in str(error)
    assert "then_async" in str(error)
    box[0].wait(10)


def test_a_callback_cannot_wait_for_its_own_child() -> None:
    """The child is what it returns."""
    parent: Future[Any] = Future()
    box: list[Future[Any]] = []
    box.append(parent.then(lambda _: box[0].wait()))
    Running(lambda: parent.set_result(1)).result()
    assert isinstance(box[0].exception(10), DeadlockError)


def test_a_group_of_such_a_future_is_refused_too() -> None:
    """It waits for all its members."""
    parent: Future[Any] = Future()
    box: list[Future[Any]] = []
    first = parent.then(lambda _: collect_all([Future(), *box]).wait())
    box.append(parent.then(third))
    Running(lambda: parent.set_result(1)).result()
    assert isinstance(first.exception(10), DeadlockError)


def test_a_wait_with_a_timeout_is_no_deadlock() -> None:
    """It ends, and says what it waited for."""
    parent: Future[Any] = Future()
    box: list[Future[Any]] = []
    first = parent.then(lambda _: box[0].wait(0.01))
    box.append(parent.then(third))
    Running(lambda: parent.set_result(1)).result()
    with pytest.raises(TimeoutError, match=r"third\(\), queued on"):
        first.wait(10)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_wait_for_a_callback_on_the_stream_that_one_is_given_is_refused(
    *, is_done: bool
) -> None:
    """Callbacks of one stream run one at a time (STR-3)."""
    host = rpcfut.stream("cpu")
    with isolated_runtime():
        other, parent = Future[Any](), Future[Any]()
        behind = other.then(third, stream=host)
        first = parent.then(
            lambda _: (other.set_result(1) if is_done else None, behind.wait()),
            stream=host,
        )
        Running(lambda: parent.set_result(1)).result()
        error = first.exception(10)
        assert isinstance(error, DeadlockError)
        assert "was given a stream on which a callback runs" in str(error)


def test_a_wait_in_a_callback_that_can_end_is_allowed() -> None:
    """Another future's child, with the same callback running above."""
    parent, other = Future[Any](), Future[Any]()
    child = other.then(lambda f: f.value())
    entered = Gate()

    def wait(_parent: Any) -> Any:
        entered.set()
        return child.wait()

    first = parent.then(wait)
    setter = Running(lambda: parent.set_result(1))
    entered.pass_through()
    other.set_result(5)
    setter.result()
    assert first.wait(10) == 5


def test_a_callback_that_completes_another_future_may_wait_for_its_child() -> None:
    """Those callbacks run on this very thread, before `set_result` returns."""
    parent, other = Future[Any](), Future[Any]()
    child = other.then(lambda _: threading.get_ident())

    def complete(_parent: Any) -> bool:
        other.set_result(1)
        return child.wait() == threading.get_ident()

    first = parent.then(complete)
    parent.set_result(1)
    assert first.wait(10) is True
