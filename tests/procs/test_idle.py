"""What workers take from a core while they do little (B127).

Measured on the processes' CPU clocks: a busy machine makes the window longer, not the
share larger.
"""

from __future__ import annotations

import pytest

from tests.support import remote_idle
from tests.support.group import run_group

pytestmark = pytest.mark.timeout(90)


def test_b127_an_idle_worker_takes_less_than_1_percent_of_a_core() -> None:
    """B127 allows 3: after traffic, with a thread and with a coroutine that wait."""
    found, _ = run_group(remote_idle.be_idle, 2)
    assert list(found) == ["nothing", "a waiter", "an asyncio waiter"]
    assert {state: s for state, s in found.items() if max(s) >= 1.0} == {}


def test_b127_a_call_every_10_ms_takes_less_than_a_fifth_of_a_core() -> None:
    """B127: nobody spins between messages."""
    found, _ = run_group(remote_idle.call_now_and_then, 2)
    assert max(found) < 20.0
