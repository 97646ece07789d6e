"""Faults of bounded queues."""

# ruff: noqa: E501 - the lines of other modules

from __future__ import annotations

from tests.faults.fault import Fault

ROWS = ("b88",)

BETWEEN_PROCESSES = ("tests/procs/test_bounds.py",)
HERE = ("tests/unit/test_bounds.py",)
PURE = ("tests/unit/transport/test_flow.py",)

FLOW = "transport/rpcfut_transport/_flow.py"
ROOMS = "transport/rpcfut_transport/_rooms.py"
OUTGOING = "transport/rpcfut_transport/_outgoing.py"

FAULTS = [
    Fault(
        row="b88",
        what="calls are never held back",
        path=FLOW,
        old="            reserved - self.acked > self.bound and self.reserved > self.acked\n",
        new="            reserved - self.acked > 1 << 40 and self.reserved > self.acked\n",
        tests=BETWEEN_PROCESSES,
    ),
    Fault(
        row="b88",
        what="calls of a caller that does not read its answers are started",
        path=ROOMS,
        old="            return Admission.WAITS\n",
        new="            pass\n",
        tests=BETWEEN_PROCESSES,
    ),
    Fault(
        row="b88",
        what="a small call overtakes a large one that waits",
        path=FLOW,
        old="        if self._waiting or (\n",
        new="        if (\n",
        tests=PURE,
    ),
    Fault(
        row="b88",
        what="room of messages that were swallowed never comes back",
        path=FLOW,
        old="        return bool(swallowed) and self.take(swallowed)\n",
        new="        return False\n",
        tests=PURE,
    ),
    Fault(
        row="b88",
        what="a receiver tells in its own steps only",
        path=FLOW,
        old="        self._due_at = min(self._due_at, total)\n        return False\n",
        new="        return False\n",
        tests=PURE,
    ),
    Fault(
        row="b88",
        what="who waits does not hear that the worker is gone",
        path=ROOMS,
        old="        _wake(ended)\n        if peer is not None:\n",
        new="        if peer is not None:\n",
        tests=HERE,
    ),
    Fault(
        row="b88",
        what="a call that could not be sent keeps its room",
        path=OUTGOING,
        old="            self._rooms.release(rank, nbytes)\n",
        new="",
        tests=HERE,
    ),
    Fault(
        row="b88",
        what="a call that ended before its device copies had passed keeps its room",
        path=OUTGOING,
        old="            self._rooms.unstage(call_id, is_sent=False)\n            return False\n",
        new="            return False\n",
        tests=HERE,
    ),
]
