"""A pool that grows when its threads wait, and refuses a wait that could not end."""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import Future, PoolExhaustedError
from rpcfut._callbacks import isolated_runtime
from rpcfut._pool import ThreadPool, around_tasks, current_pool
from tests.support.threads import Gate, run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def _pool(**sizes: Any) -> Iterator[ThreadPool]:
    pool = ThreadPool("test", **sizes)
    try:
        yield pool
    finally:
        pool.close()


def _run(pool: ThreadPool, task: Callable[[], Any]) -> Any:
    """Run a task on the pool and return what it returned."""
    done = Gate()
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(task())
        finally:
            done.set()

    pool.submit(run)
    done.pass_through()
    return results[0]


class _Block:
    """A task that blocks its thread as a wait does, until it is let go."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self.entered, self.may_end, self.ended = Gate(), Gate(), Gate()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            with self._pool.blocking():
                self.entered.set()
                self.may_end.pass_through()
        except PoolExhaustedError as error:
            self.error = error
        self.ended.set()


def test_a_task_runs_on_a_daemon_thread_that_knows_its_pool() -> None:
    """The name says whose thread it is."""
    with _pool() as pool:
        assert _run(pool, current_pool) is pool
        thread = _run(pool, threading.current_thread)
    assert thread.daemon
    assert thread.name.startswith("test-")
    assert current_pool() is None


@pytest.mark.parametrize(("core", "most"), [(0, 1), (2, 1)])
def test_sizes_that_make_no_sense_are_refused(core: int, most: int) -> None:
    """At once, and with the numbers."""
    with pytest.raises(ValueError, match=f"got {core} and {most}"):
        ThreadPool("test", core_threads=core, max_threads=most)


def test_tasks_queue_when_all_threads_are_busy_and_all_run() -> None:
    """No more threads than asked for; nothing is lost and the order is kept."""
    with _pool(core_threads=1) as pool:
        busy, may_go_on, done = Gate(), Gate(), Gate()
        ran: list[int] = []

        def occupy() -> None:
            busy.set()
            may_go_on.pass_through()

        pool.submit(occupy)
        busy.pass_through()
        for i in range(100):
            pool.submit(lambda i=i: ran.append(i))
        pool.submit(done.set)
        assert repr(pool) == (
            "<ThreadPool 'test': 1 threads, 0 idle, 0 waiting, 101 tasks queued>"
        )
        may_go_on.set()
        done.pass_through()
    assert ran == list(range(100))


def test_a_waiting_thread_is_replaced() -> None:
    """What it waits for always finds a thread, also if it was queued before."""
    with _pool(core_threads=1, max_threads=8) as pool:
        blocks = [_Block(pool) for _ in range(7)]
        for block in blocks:
            pool.submit(block)
        for block in blocks:
            block.entered.pass_through()
        assert "7 waiting" in repr(pool)
        assert _run(pool, lambda: 1) == 1
        for block in blocks:
            block.may_end.set()
            block.ended.pass_through()
    assert all(block.error is None for block in blocks)


def test_a_task_that_is_queued_already_starts_when_a_thread_waits() -> None:
    """The thread may wait for that very task."""
    with _pool(core_threads=1, max_threads=2) as pool:
        running, may_wait, ran, ended = Gate(), Gate(), Gate(), Gate()

        def wait_for_the_next() -> None:
            running.set()
            may_wait.pass_through()
            with pool.blocking():
                ran.pass_through()
            ended.set()

        pool.submit(wait_for_the_next)
        running.pass_through()
        pool.submit(ran.set)
        assert "1 tasks queued" in repr(pool)
        may_wait.set()
        ended.pass_through()


def test_the_last_possible_wait_is_refused_with_the_way_out() -> None:
    """It would leave no thread to run what everybody waits for."""
    with _pool(core_threads=1, max_threads=3) as pool:
        blocks = [_Block(pool) for _ in range(2)]
        for block in blocks:
            pool.submit(block)
            block.entered.pass_through()
        last = _Block(pool)
        pool.submit(last)
        last.ended.pass_through()
        assert isinstance(last.error, PoolExhaustedError)
        assert "2 of 3 threads of pool 'test'" in str(last.error)
        assert "chain with then()" in str(last.error)
        assert _run(pool, lambda: 1) == 1
        for block in blocks:
            block.may_end.set()
            block.ended.pass_through()
        again = _Block(pool)
        again.may_end.set()
        pool.submit(again)
        again.ended.pass_through()
        assert again.error is None


def test_callbacks_that_wait_for_later_callbacks_all_end() -> None:
    """The wait of a future tells the pool: a hundred waits do not starve it."""
    with isolated_runtime():
        release: Future[int] = Future()

        def start() -> Future[int]:
            done: Future[int] = Future()
            done.set_result(0)
            return done

        waiting = [start().then(lambda _: release.wait(20)) for _ in range(100)]
        start().then(lambda _: release.set_result(5))
        assert [child.wait(20) for child in waiting] == [5] * 100


def test_the_thread_that_went_idle_last_runs_the_next_task() -> None:
    """It is the likeliest to be warm; the others may time out."""
    with _pool() as pool:
        gates = [(Gate(), Gate()) for _ in range(3)]
        threads: list[int] = [0, 0, 0]

        def hold(i: int) -> None:
            threads[i] = threading.get_ident()
            gates[i][0].set()
            gates[i][1].pass_through()

        for i, (entered, _) in enumerate(gates):
            pool.submit(lambda i=i: hold(i))
            entered.pass_through()
        for idle, (_, may_end) in enumerate(gates, start=1):
            may_end.set()
            _until(lambda idle=idle: f" {idle} idle" in repr(pool))
        assert {_run(pool, threading.get_ident) for _ in range(10)} == {threads[2]}


def _until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(5000):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it never came true")


def test_an_idle_thread_ends_after_its_time() -> None:
    """And a later task starts a new one."""
    with _pool(keep_alive_s=0.0) as pool:
        assert _run(pool, lambda: 1) == 1
        _until(lambda: "0 threads" in repr(pool))
        assert _run(pool, lambda: 2) == 2


@pytest.mark.parametrize("round_", range(3))
def test_no_task_is_lost_while_threads_time_out(round_: int) -> None:
    """A task handed over in the moment that its thread gives up still runs."""
    del round_
    with _pool(keep_alive_s=1e-6, core_threads=4) as pool:
        done = threading.Semaphore(0)

        def submit() -> None:
            for _ in range(300):
                pool.submit(done.release)
                assert done.acquire(timeout=10)

        assert run_together(*[submit] * 4) == [None] * 4


def test_close_lets_threads_end_and_refuses_new_tasks() -> None:
    """Queued tasks still run; closing again does nothing."""
    pool = ThreadPool("test", core_threads=1)
    busy, may_go_on, ran = Gate(), Gate(), Gate()

    def occupy() -> None:
        busy.set()
        may_go_on.pass_through()

    pool.submit(occupy)
    busy.pass_through()
    pool.submit(ran.set)
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="pool 'test' is closed"):
        pool.submit(lambda: None)
    may_go_on.set()
    ran.pass_through()
    _until(lambda: "0 threads" in repr(pool))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_raising_task_does_not_cost_a_thread(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, since it is a fault of the library, and the thread goes on."""

    def fail() -> None:
        raise kind

    with _pool(core_threads=1) as pool, caplog.at_level(logging.ERROR, "rpcfut.pool"):
        first = _run(pool, threading.get_ident)
        pool.submit(fail)
        assert _run(pool, threading.get_ident) == first
    assert [r.getMessage() for r in caplog.records] == ["a task of pool test raised"]


def test_a_context_around_tasks_is_entered_on_the_tasks_thread() -> None:
    """For tools whose state is per thread; after it, tasks run bare again."""
    entered: list[int] = []

    @contextmanager
    def note():
        entered.append(threading.get_ident())
        yield

    ran: queue.SimpleQueue[int] = queue.SimpleQueue()
    with _pool() as pool:
        with around_tasks(note):
            pool.submit(lambda: ran.put(threading.get_ident()))
            assert [ran.get(timeout=10)] == entered
        pool.submit(lambda: ran.put(0))
        ran.get(timeout=10)
        assert len(entered) == 1


def test_threads_that_block_where_nobody_knows_do_not_stop_the_pool() -> None:
    """They hold a user's lock, say; after a moment others are started beside them."""
    with _pool(core_threads=2, max_threads=8) as pool:
        may_go = threading.Event()
        ran: queue.SimpleQueue[int] = queue.SimpleQueue()
        for _ in range(4):
            pool.submit(lambda: may_go.wait(30) and None)
        pool.submit(lambda: ran.put(1))
        assert ran.get(timeout=10) == 1
        may_go.set()
