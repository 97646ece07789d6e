"""The one thread that waits for devices: in no order, and nobody is forgotten."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from rpcfut._streams import Mark
from rpcfut._watcher import DeviceWatcher
from tests.support.fake_seam import FAKE0, FakeEvent, FakeSeam, FakeStream
from tests.support.threads import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator

SEAM = FakeSeam()


@pytest.fixture
def watcher() -> Iterator[DeviceWatcher]:
    """A watcher that ends with the test."""
    made = DeviceWatcher("test")
    yield made
    made.close(10)


def _mark() -> Mark:
    return Mark(SEAM, FAKE0, FakeEvent(FakeStream(FAKE0)))


def _let_pass(mark: Mark) -> None:
    assert isinstance(mark.event, FakeEvent)
    mark.event.passed.set()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


class _LostEvent(FakeEvent):
    """An event of a device that failed."""

    def query(self) -> bool:
        raise OSError("the device is lost")


def test_without_marks_the_action_runs_at_once(watcher: DeviceWatcher) -> None:
    """On the calling thread; the watcher's own does not even start."""
    threads: list[threading.Thread] = []
    passed = _mark()
    _let_pass(passed)
    for marks in ([], [passed]):
        watcher.when_passed(
            marks, lambda: threads.append(threading.current_thread()), _unexpected
        )
    assert threads == [threading.current_thread()] * 2
    assert watcher._thread is None


def test_a_stream_that_is_behind_does_not_hold_up_another(
    watcher: DeviceWatcher,
) -> None:
    """Actions run as their marks pass, not as they came."""
    marks = [_mark() for _ in range(3)]
    ran: list[int] = []
    gates = [Gate() for _ in marks]

    def act(i: int) -> None:
        ran.append(i)
        gates[i].set()

    for i, mark in enumerate(marks):
        watcher.when_passed([mark], lambda i=i: act(i), _unexpected)
    for i in (2, 0, 1):
        _let_pass(marks[i])
        gates[i].pass_through()
    assert ran == [2, 0, 1]


def test_an_action_waits_for_all_its_marks(watcher: DeviceWatcher) -> None:
    """The last one to pass starts it, on the watcher's thread."""
    one, other, later = _mark(), _mark(), _mark()
    names: list[str] = []
    acted, seen = Gate(), Gate()

    def act() -> None:
        names.append(threading.current_thread().name)
        acted.set()

    watcher.when_passed([one, other], act, _unexpected)
    watcher.when_passed([later], seen.set, _unexpected)
    _let_pass(one)
    _let_pass(later)
    seen.pass_through()
    assert names == []
    _let_pass(other)
    acted.pass_through()
    assert names == ["rpcfut-watcher-test"]


def test_a_device_that_fails_is_told_to_its_job_alone(watcher: DeviceWatcher) -> None:
    """Somebody waits for this job and must hear of it; other jobs go on."""
    failing = _mark()
    lost = Mark(SEAM, FAKE0, _LostEvent(FakeStream(FAKE0)))
    other = _mark()
    errors: list[Exception] = []
    failed, acted = Gate(), Gate()

    def fail(error: Exception) -> None:
        errors.append(error)
        failed.set()

    watcher.when_passed([failing], lambda: 1 // 0, fail)
    watcher.when_passed([other], acted.set, _unexpected)
    _let_pass(failing)
    failed.pass_through()
    watcher.when_passed([lost], lambda: None, fail)
    _let_pass(other)
    acted.pass_through()
    assert [type(error) for error in errors] == [ZeroDivisionError, OSError]


def test_a_faulty_error_handler_is_logged_and_the_watcher_goes_on(
    watcher: DeviceWatcher, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the other jobs' fault."""
    failing, other = _mark(), _mark()
    acted = Gate()
    watcher.when_passed([failing], lambda: 1 // 0, _unexpected)
    watcher.when_passed([other], acted.set, _unexpected)
    with caplog.at_level(logging.ERROR, "rpcfut.watcher"):
        _let_pass(failing)
        _let_pass(other)
        acted.pass_through()
        watcher.close(10)
    assert "a job of the device watcher of test failed" in caplog.text


def test_close_ends_the_thread_and_refuses_new_jobs() -> None:
    """A job that comes later hears of it at once; closing again does nothing."""
    watcher = DeviceWatcher("test")
    errors: list[Exception] = []
    watcher.when_passed([_mark()], lambda: None, errors.append)
    assert watcher._thread is not None
    watcher.close(10)
    watcher.close(10)
    assert not watcher._thread.is_alive()
    before = len(errors)
    watcher.when_passed([_mark()], lambda: None, errors.append)
    assert "the device watcher of 'test' is closed" in str(errors[before])


def test_close_tells_the_jobs_that_it_drops() -> None:
    """Every call ends (RPC-2): whoever waits for a job hears that it will not run."""
    watcher = DeviceWatcher("test")
    marks = [_mark() for _ in range(3)]
    errors: list[Exception] = []
    for mark in marks:
        watcher.when_passed([mark], lambda: None, errors.append)
    watcher.close(10)
    assert len(errors) == 3
    assert all("is closed" in str(error) for error in errors)


def test_close_from_an_action_does_not_hang() -> None:
    """The watcher's thread does not wait for itself."""
    watcher = DeviceWatcher("test")
    mark, closed = _mark(), Gate()

    def close() -> None:
        watcher.close(10)
        closed.set()

    watcher.when_passed([mark], close, _unexpected)
    _let_pass(mark)
    closed.pass_through()


def test_the_watcher_names_its_agent() -> None:
    """Every long-lived object tells its state and counts."""
    assert repr(DeviceWatcher("w")) == "<DeviceWatcher 'w': 0 jobs not yet seen>"
