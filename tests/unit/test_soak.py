"""Soaks: races without end, and chains without end (FUT-1, FUT-3; B29, B32, B39)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import threading
import time
import weakref
from typing import Any

import pytest

from rpcfut import Future, collect_all, wait_all
from rpcfut._callbacks import isolated_runtime
from tests.support.garbage import settle
from tests.support.threads import Running

THREADS = 64
SOAK_S = float(os.environ.get("RPCFUT_SOAK_S", "60"))


class _Round:
    """A few futures that all threads race for, and who won."""

    def __init__(self, live: weakref.WeakSet[Future[int]]) -> None:
        self.futures = [Future[int]() for _ in range(8)]
        self.wins: list[int] = []
        live.update(self.futures)


def _chain(future: Future[int], _this: _Round) -> None:
    future.then(lambda f: f.exception()).add_done_callback(lambda _: None)


def _group(_future: Future[int], this: _Round) -> None:
    collect_all(this.futures).then(lambda f: len(f.value()))


def _poll(_future: Future[int], this: _Round) -> None:
    concurrent.futures.wait(this.futures, timeout=0)


def _wait(future: Future[int], _this: _Round) -> None:
    with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
        future.wait(0.001)


def _cancel(future: Future[int], _this: _Round) -> None:
    future.cancel()


def _complete(future: Future[int], this: _Round) -> None:
    index = this.futures.index(future)
    if future.try_set_result(index):
        this.wins.append(index)


ACTS = (_chain, _group, _poll, _wait, _wait, _cancel, _complete, _complete)


def _finish(this: _Round) -> None:
    """Nobody may be left waiting: each future ends, and all see the same end."""
    for index, future in enumerate(this.futures):
        _complete(future, this)
        if not future.cancelled():
            assert future.wait(10) == index
        assert future.then(lambda _, i=index: i).wait(10) == index
    assert len(this.wins) == len(set(this.wins)), "two completions won"


class _Soak:
    """Rounds that all threads play together; thread 0 makes and ends each."""

    def __init__(self) -> None:
        self.live: weakref.WeakSet[Future[int]] = weakref.WeakSet()
        self.rounds = 0
        self._round: _Round | None = None
        self._barrier = threading.Barrier(THREADS)
        self._deadline_s = time.perf_counter() + SOAK_S

    def work(self, number: int) -> None:
        """What one thread does until the time is up."""
        dice = random.Random(number)
        try:
            while self._play(number, dice):
                pass
        except BaseException:
            self._barrier.abort()
            raise

    def _play(self, number: int, dice: random.Random) -> bool:
        if number == 0:
            is_over = time.perf_counter() >= self._deadline_s
            self._round = None if is_over else _Round(self.live)
        self._barrier.wait(60)
        this = self._round
        if this is None:
            return False
        for _ in range(16):
            dice.choice(ACTS)(dice.choice(this.futures), this)
        self._barrier.wait(60)
        if number == 0:
            _finish(this)
            self.rounds += 1
        else:
            with contextlib.suppress(concurrent.futures.CancelledError):
                this.futures[number % len(this.futures)].wait(30)
        del this
        self._barrier.wait(60)
        return True


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 120)
def test_threads_that_complete_wait_and_cancel_lose_nothing() -> None:
    """No wake-up is lost, one completion wins, and no future lives on."""
    soak = _Soak()
    with isolated_runtime():
        threads = [Running(lambda n=n: soak.work(n)) for n in range(THREADS)]
        for thread in threads:
            thread._thread.join(SOAK_S + 90)
            thread.result()
        settle(soak.live)
    assert soak.rounds > 0
    assert len(soak.live) == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_done", [False, True])
def test_a_hundred_thousand_chained_thens(*, is_done: bool) -> None:
    """Without recursion, and without one of them living on (FUT-3)."""
    first: Future[int] = Future()
    live: weakref.WeakSet[Future[int]] = weakref.WeakSet()
    if is_done:
        first.set_result(0)
    last = first
    for _ in range(100_000):
        last = last.then(lambda f: f.value() + 1)
        live.add(last)
    if not is_done:
        first.set_result(0)
    assert last.wait(100) == 100_000
    del first, last
    settle(live)
    assert len(live) == 0


@pytest.mark.slow
def test_callbacks_that_close_over_their_future_are_collected_b39() -> None:
    """Ten thousand, half of them never completed."""
    live: weakref.WeakSet[Future[int]] = weakref.WeakSet()
    for number in range(10_000):
        future: Future[int] = Future()
        future.then(lambda _, f=future: f)
        live.add(future)
        if number % 2:
            future.set_result(1)
    del future
    settle(live)
    assert len(live) == 0


@pytest.mark.slow
def test_tasks_that_give_up_and_results_that_come_late() -> None:
    """Twenty thousand awaits raced by completions; no error in the loop (B37, B38)."""
    errors: list[Any] = []

    async def one(dice: random.Random) -> None:
        future: Future[int] = Future()
        loop = asyncio.get_running_loop()
        setter = loop.run_in_executor(None, future.try_set_result, 1)
        try:
            await asyncio.wait_for(future, dice.random() * 0.001)
        except (TimeoutError, concurrent.futures.CancelledError):
            assert future.done()  # its result came first, or nobody's will
        await setter

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: errors.append(context)
        )
        dice = random.Random(1)
        for _ in range(200):
            await asyncio.gather(*(one(dice) for _ in range(100)))

    asyncio.run(main())
    assert errors == []


@pytest.mark.slow
def test_many_waiters_of_one_group() -> None:
    """Each of them gets all the values, whoever completes the last member."""
    for _ in range(200):
        members = [Future[int]() for _ in range(8)]
        waiters = [Running(lambda m=members: wait_all(m)) for _ in range(8)]
        setters = [
            Running(lambda m=member, i=i: m.set_result(i))
            for i, member in enumerate(members)
        ]
        for setter in setters:
            setter.result()
        assert [w.result() for w in waiters] == [list(range(8))] * 8
