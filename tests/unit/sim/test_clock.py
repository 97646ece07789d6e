"""Vector clocks know what has happened, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpcfut.testing._sim_clock import VectorClock

COUNTS = st.dictionaries(st.integers(0, 3), st.integers(1, 4))


@given(COUNTS, COUNTS)
def test_a_join_knows_what_either_knew(
    first: dict[int, int], second: dict[int, int]
) -> None:
    """It is the least clock that is not behind either."""
    joined = VectorClock(first)
    joined.join(VectorClock(second))
    for queue in range(4):
        for n in range(1, 5):
            known = max(first.get(queue, 0), second.get(queue, 0)) >= n
            assert joined.covers(queue, n) == known
    assert VectorClock(first) <= joined
    assert VectorClock(second) <= joined


@given(COUNTS, COUNTS)
def test_a_clock_is_behind_another_if_that_knows_all_it_knows(
    first: dict[int, int], second: dict[int, int]
) -> None:
    """The order is by parts; two clocks may be in no order."""
    behind = all(second.get(queue, 0) >= n for queue, n in first.items())
    assert (VectorClock(first) <= VectorClock(second)) == behind


def test_a_copy_moves_on_its_own() -> None:
    """An event keeps what its stream knew when it was recorded."""
    clock = VectorClock()
    assert clock.tick(1) == 1
    copy = clock.copy()
    assert clock.tick(1) == 2
    assert not copy.covers(1, 2)
    assert repr(copy) == "<VectorClock {1: 1}>"
