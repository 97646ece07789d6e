"""A message that must be taken once is taken once, and never late (RPC-5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpcfut_transport._arrivals import Arrivals


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9))))
def test_each_number_of_a_sender_is_taken_once_and_in_order(seen) -> None:
    arrivals = Arrivals()
    taken = [(rank, n) for rank, n in seen if arrivals.is_new(rank, 7, n)]
    for sender in range(3):
        numbers = [number for rank, number in taken if rank == sender]
        assert numbers == sorted(set(numbers))
        # None is refused without a reason: one as high came before.
        best = 0
        expected = []
        for rank, number in seen:
            if rank == sender and number > best:
                best = number
                expected.append(number)
        assert numbers == expected


def test_another_life_counts_from_anywhere() -> None:
    """A restarted worker numbers its messages anew."""
    arrivals = Arrivals()
    assert arrivals.is_new(1, 7, 100)
    assert arrivals.is_new(1, 8, 1)
    assert not arrivals.is_new(1, 8, 1)
    assert repr(arrivals) == "<Arrivals newest={1: 1}>"


def test_what_has_no_number_is_always_new() -> None:
    arrivals = Arrivals()
    assert all(arrivals.is_new(1, 7, 0) for _ in range(3))
    assert arrivals.is_new(1, 7, 5)
    assert arrivals.is_new(1, 7, 0)
    assert not arrivals.is_new(1, 7, 5)
