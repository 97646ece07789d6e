"""Calls with device tensors between two processes on one GPU."""

from __future__ import annotations

import pytest

from tests.support import remote_cuda
from tests.support.group import run_group

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(180)]


def test_str8_device_arguments_and_answers_are_right_on_every_stream() -> None:
    """STR-1, STR-2, STR-8: through pinned memory, in stream order, 20 times each."""
    seen, _ = run_group(remote_cuda.call_with_device_tensors, 2)
    turns = range(1, remote_cuda.REPEATS + 1)
    assert seen["overwritten"] == [(2.0 * turn, 2.0 * turn) for turn in turns]
    assert seen["late"] == [2.0] * remote_cuda.REPEATS
    assert seen["pair"] == ("cuda:0", [-1.0] * 5, 5.0)
    assert seen["child"] == [3.0] * 5
