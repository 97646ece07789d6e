"""Faults of futures: waiting, callbacks, chains, event loops, what is forgotten."""

from __future__ import annotations

from tests.faults.fault import FIELD_REPORTS, Fault

ROWS = (
    *("b10", "b26", "b27", "b28", "b29", "b30", "b31", "b32", "b33", "b34", "b35"),
    *("b36", "b37", "b39", "b132", "b133"),
)

CORE = "rpcfut/_future_core.py"
FUTURE = "rpcfut/_future.py"
WAIT = "rpcfut/_future_wait.py"
GROUP = "rpcfut/_group.py"
BLOCK = "        waiter.block(-1.0 if seconds is None else seconds)\n"

FAULTS = [
    Fault(
        row="b10",
        what="a wait for one future ignores its limit",
        path=WAIT,
        old="    seconds = None if timeout is None else",
        new="    seconds = None if timeout is None or timeout else",
    ),
    Fault(
        row="b10",
        what="a wait for many futures ignores its limit",
        path=WAIT,
        old="                    _wait(waiter, inbox, left_s)\n",
        new="                    _wait(waiter, inbox, None)\n",
    ),
    Fault(
        row="b10",
        what="a wait that ran out of time cancels its future",
        path=WAIT,
        old="    if not waiter.is_done:\n        raise TimeoutError(\n",
        new="    if not waiter.is_done:\n"
        "        future.cancel()\n"
        "        raise TimeoutError(\n",
    ),
    Fault(
        row="b26",
        what="the child of a callback that raised never completes",
        path=CORE,
        old="            if callback.child is not None:\n"
        "                callback.child._follow(completion)\n",
        new="            if callback.child and type(completion.outcome) is Value:\n"
        "                callback.child._follow(completion)\n",
    ),
    Fault(
        row="b26",
        what="a done callback that raises does so in silence",
        path="rpcfut/_callback.py",
        old="                self._log_error(error)\n",
        new="                pass\n",
    ),
    Fault(
        row="b26",
        what="callbacks after one that raised do not run",
        path=CORE,
        old="        if not is_last:\n",
        new="        if not is_last and type(completion.outcome) is not Failure:\n",
    ),
    Fault(
        row="b27",
        what="a failure that nobody saw is forgotten",
        path="rpcfut/_unobserved.py",
        old="        if not self.is_seen:\n",
        new="        if False:\n",
    ),
    Fault(
        row="b27",
        what="a failure that somebody saw is reported, too",
        path=CORE,
        old="            unseen.is_seen = True\n",
        new="            pass\n",
    ),
    Fault(
        row="b27",
        what="the report does not say which call failed",
        path="rpcfut/_unobserved.py",
        old='    return f"call {about}" if about is not None else',
        new="    return",
    ),
    Fault(
        row="b28",
        what="waiting for many waits for all before it raises",
        path=GROUP,
        old="                member.value()  # raises, in this frame\n",
        new="                pass\n",
        tests=(FIELD_REPORTS, "tests/unit/test_group.py"),
    ),
    Fault(
        row="b28",
        what="waiting for many drops the errors",
        path=GROUP,
        old="            if not "
        "isinstance(completion_of_done(member).outcome, Value):\n"
        "                member.value()  # raises, in this frame\n"
        "    return [member.value() for member in members]\n",
        new="            completion_of_done(member)\n"
        "    return [m.value() for m in members if m.exception() is None]\n",
    ),
    Fault(
        row="b28",
        what="the group is done with its first member",
        path=GROUP,
        old="            if self._left:\n",
        new="            if self._complete is None:\n",
        shows="AssertionError|Failed|AttributeError",
    ),
    Fault(
        row="b29",
        what="the state is looked at without the lock only",
        path=CORE,
        old="            if self._outcome is not None:\n                return None\n"
        "            # The outcome last",
        new="            # The outcome last",
        shows="not enough values|too many values|AssertionError|assert",
    ),
    Fault(
        row="b29",
        what="a second result is dropped in silence",
        path=FUTURE,
        old="        if not self.try_set_result(result):\n"
        "            raise self._done_already()\n",
        new="        self.try_set_result(result)\n",
        shows="too many values",
    ),
    Fault(
        row="b29",
        what="a second error is dropped in silence",
        path=FUTURE,
        old="        if not self._complete(completion, _callbacks.run_here):\n"
        "            raise self._done_already()\n",
        new="        self._complete(completion, _callbacks.run_here)\n",
    ),
    Fault(
        row="b30",
        what="a callback of a done future raises into who registers it",
        path=CORE,
        old="            if self._outcome is None:\n                return\n"
        "            if self._unseen is not None:\n",
        new="            if self._outcome is None:\n                return\n"
        "            if callback.child is None:\n"
        "                return callback.function(self)\n"
        "            if self._unseen is not None:\n",
        shows="ValueError: on purpose",
    ),
    Fault(
        row="b30",
        what="errors of done callbacks of done futures go to nobody",
        path=CORE,
        old="            if self._outcome is None:\n                return\n"
        "            if self._unseen is not None:\n",
        new="            if self._outcome is None:\n                return\n"
        "            callback.child = callback.child or type(self)()\n"
        "            if self._unseen is not None:\n",
    ),
    Fault(
        row="b31",
        what="the last callback runs first",
        path=CORE,
        old="        callback = self._queue.popleft()\n",
        new="        callback = self._queue.pop()\n",
    ),
    Fault(
        row="b31",
        what="callbacks that come while one runs start at once",
        path=CORE,
        old="            if self._is_draining:\n                return\n",
        new="",
    ),
    Fault(
        row="b32",
        what="callbacks run under the future's lock",
        path=CORE,
        old="            completion = callback.invoke(",
        new="            with self._lock: completion = callback.invoke(",
    ),
    Fault(
        row="b32",
        what="values are looked into under the future's lock",
        path=FUTURE,
        old="        completion = completion_of(result, self._devices, self._origin)\n",
        new="        with self._lock:\n            completion = completion_of("
        "result, self._devices, self._origin)\n",
    ),
    Fault(
        row="b32",
        what="callbacks are compared under the future's lock",
        path="rpcfut/_future_removal.py",
        old="list(future._queue or ())\n",
        new="list(future._queue or ())\n"
        "        queue = [c for c in queue if c.function == function]\n",
    ),
    Fault(
        row="b32",
        what="callbacks are dropped under the future's lock",
        path="rpcfut/_future_removal.py",
        old="    functions = [c.function for c in found]\n",
        new="    functions = []\n",
    ),
    Fault(
        row="b33",
        what="a finaliser takes a lock",
        path="rpcfut/_unobserved.py",
        old="            _put(_Report(self._error, self._made_at, self._about))\n",
        new="            with REPORTER._lock:\n"
        "                _put(_Report(self._error, self._made_at, self._about))\n",
    ),
    Fault(
        row="b33",
        what="a finaliser writes the log itself",
        path="rpcfut/_unobserved.py",
        old="            _put(_Report(self._error, self._made_at, self._about))\n",
        new="            report = _Report(self._error, self._made_at, self._about)\n"
        "            _log_report(report)\n",
        tests=(FIELD_REPORTS, "tests/unit/test_unobserved.py"),
    ),
    Fault(
        row="b33",
        what="a finaliser takes the pool's lock",
        path="rpcfut/_unobserved.py",
        old="            _put(_Report(self._error, self._made_at, self._about))\n",
        new="            from rpcfut._callbacks import run_on_pool\n"
        "            report = _Report(self._error, self._made_at, self._about)\n"
        "            run_on_pool(lambda: _put(report))\n",
    ),
    Fault(
        row="b34",
        what="a returned future is a value like any other",
        path=CORE,
        old="        if not isinstance(value, FutureCore):\n",
        new="        if True:\n",
    ),
    Fault(
        row="b34",
        what="the pool does not grow when its threads wait",
        path="rpcfut/_pool.py",
        old="MAX_THREADS = 256\n",
        new="MAX_THREADS = CORE_THREADS\n",
        shows="PoolExhaustedError",
    ),
    Fault(
        row="b34",
        what="a coroutine may block the loop",
        path="rpcfut/_loop_thread.py",
        old="        raise DeadlockError(\n",
        new="        yield\n        return\n        raise DeadlockError(\n",
        tests=("tests/unit/test_then_async.py",),
    ),
    Fault(
        row="b35",
        what="a wait for one future keeps the GIL",
        path=WAIT,
        old="    if pool is None:\n",
        new="    if pool is None:\n"
        "        import ctypes\n"
        "        ctypes.PyDLL(None).usleep(int(seconds * 1e6))\n"
        "        seconds = 0.0\n",
    ),
    Fault(
        row="b35",
        what="a wait for one future spins",
        path=WAIT,
        old=BLOCK,
        new="        end_s = now_s() + (seconds or 0.0)\n"
        "        while not waiter.is_done and now_s() < end_s:\n"
        "            waiter.block(0.0)\n",
    ),
    Fault(
        row="b35",
        what="a wait for many futures spins",
        path=WAIT,
        old="                    _wait(waiter, inbox, left_s)\n",
        new="                    while not self.done and now_s() < deadline_s:\n"
        "                        pass\n",
    ),
    Fault(
        row="b36",
        what="awaiting blocks the loop",
        path=FUTURE,
        old="        hooks: list[Hook] = []\n",
        new="        hooks: list[Hook] = []\n        block(self, 5.0)\n",
        shows="the gate was never opened",
    ),
    Fault(
        row="b36",
        what="awaiting blocks the loop of trio",
        path=FUTURE,
        old="        hooks: list[Hook] = []\n",
        new="        hooks: list[Hook] = []\n        block(self, 5.0)\n",
        tests=("tests/unit/test_trio.py",),
        shows="ExceptionGroup",
    ),
    Fault(
        row="b36",
        what="a loop that sleeps is not woken",
        path="rpcfut/_asyncio_wait.py",
        old="            loop.call_soon_threadsafe(wake)\n",
        new="            loop.call_soon(wake)\n",
    ),
    Fault(
        row="b37",
        what="a result comes to an await that was given up",
        path="rpcfut/_asyncio_wait.py",
        old="        if not waiter.done():\n            waiter.set_result(None)\n",
        new="        waiter.set_result(None)\n",
    ),
    Fault(
        row="b37",
        what="a result comes to a loop that was closed",
        path="rpcfut/_asyncio_wait.py",
        old='            _log.debug("the loop of a done callback was closed before it '
        'could run")\n',
        new="            raise\n",
        shows="Event loop is closed",
    ),
    Fault(
        row="b39",
        what="a table holds all children",
        path=FUTURE,
        old="        child._leader = weakref.ref(self)\n",
        new="        child._leader = weakref.ref(self)\n"
        '        Future.__dict__["then"].__annotations__[child] = child\n',
    ),
    Fault(
        row="b39",
        what="idle threads hold what they ran last",
        path="rpcfut/_pool.py",
        old="            task = None  # do not keep its value alive while idle\n",
        new="",
    ),
    Fault(
        row="b39",
        what="calls that a close ended stay in the table",
        path="transport/rpcfut_transport/_ledger.py",
        old="        return [self._sinks.pop(call_id) for call_id in call_ids]\n",
        new="        return [self._sinks[call_id] for call_id in call_ids]\n",
    ),
    Fault(
        row="b132",
        what="children have no type",
        path=FUTURE,
        old="        callback: Callable[[Future[T]], S],\n"
        "        *,\n"
        "        stream: Streams = None,\n"
        "        devices: Iterable[str | int | torch.device] | None = None,\n"
        "        after_here: bool = True,\n"
        "        extractor: Callable[[Any], object] | None = None,\n"
        "    ) -> Future[S]: ...\n",
        new="        callback: Callable[[Future[T]], S],\n"
        "        *,\n"
        "        stream: Streams = None,\n"
        "        devices: Iterable[str | int | torch.device] | None = None,\n"
        "        after_here: bool = True,\n"
        "        extractor: Callable[[Any], object] | None = None,\n"
        "    ) -> Future[Any]: ...\n",
        tests=("tests/unit/test_typing.py",),
    ),
    Fault(
        row="b133",
        what="a wait for one future goes on after Ctrl-C",
        path=WAIT,
        old=BLOCK,
        new="        try:\n"
        "            waiter.block(-1.0)\n"
        "        except KeyboardInterrupt:\n"
        "            waiter.block(-1.0)\n",
        tests=("tests/unit/test_future_wait.py",),
        shows="TimeoutExpired",
    ),
    Fault(
        row="b133",
        what="a signal that ends no system call is not looked for",
        path="transport/rpcfut_transport/_inbox.py",
        old="        self.longest_s = _LOOK_S if is_main else math.inf",
        new="        self.longest_s = math.inf if is_main else math.inf",
        tests=("tests/unit/test_future_wait.py",),
        shows="TimeoutExpired",
    ),
    Fault(
        row="b133",
        what="who reads does not look for signals",
        path="transport/rpcfut_transport/_inbox.py",
        old="        pull, longest_s = self._pull, waiter.longest_s\n",
        new="        pull, longest_s = self._pull, math.inf\n",
        tests=("tests/procs/test_interrupts.py",),
    ),
]
