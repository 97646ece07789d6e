"""Every call ends once, and nobody answers for another (RPC-2, RPC-5, RPC-7)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from rpcfut_transport import (
    AuthenticationError,
    LocalProtocolError,
    PeerLost,
    UnknownPeer,
)
from rpcfut_transport._peer_state import PeerState
from rpcfut_transport._session import Session

GONE = (PeerState.LEFT, PeerState.LOST)


def _session() -> Session:
    session = Session()
    session.add_peer(1, "w1", 11)
    session.add_peer(2, "w2", 12)
    return session


def test_an_answer_ends_its_call_and_the_second_is_late() -> None:
    """A duplicate is counted and dropped."""
    session = _session()
    call_id = session.open_call(1, None)
    assert session.on_reply(call_id, 1, 11)
    assert not session.on_reply(call_id, 1, 11)
    assert (session.late_replies, session.pending_count) == (1, 0)


@pytest.mark.parametrize(("rank", "incarnation"), [(2, 12), (1, 10), (3, 11)])
def test_only_the_peer_that_was_called_can_answer(rank: int, incarnation: int) -> None:
    """A third member, or an earlier life of the callee, cannot answer for it."""
    session = _session()
    call_id = session.open_call(1, None)
    assert not session.on_reply(call_id, rank, incarnation)
    assert (session.dropped_replies, session.pending_count) == (1, 1)


@pytest.mark.parametrize("call_id", [0, 1, 2**64 - 1])
def test_an_answer_to_no_call_is_dropped_and_is_not_late(call_id: int) -> None:
    """The count of late answers tells about slow callees only."""
    session = _session()
    assert not session.on_reply(call_id, 1, 11)
    assert (session.late_replies, session.dropped_replies) == (0, 1)


@pytest.mark.parametrize("state", GONE)
def test_a_gone_peer_fails_its_calls_and_no_others(state: PeerState) -> None:
    """Calls to others go on, and later calls to it are refused with the reason."""
    session = _session()
    first, other, second = (session.open_call(rank, 5.0) for rank in (1, 2, 1))
    assert session.end_peer(1, state, "it ended") == [first, second]
    assert session.find_call(other) is not None
    with pytest.raises(PeerLost, match="'w1' is gone: it ended"):
        session.open_call(1, None)
    with pytest.raises(PeerLost):
        session.end_peer(1, state, "again")
    assert session.on_tick(9.0) == [other]


def test_a_peer_with_a_wrong_key_is_refused_as_such() -> None:
    """That is no loss: it will not be cured by a restart."""
    session = _session()
    session.end_peer(1, PeerState.REFUSED, "it has another secret")
    with pytest.raises(AuthenticationError, match="it has another secret"):
        session.open_call(1, None)


def test_a_look_is_a_copy() -> None:
    """Who reports does so while others open and end calls."""
    session = _session()
    call_id = session.open_call(1, None)
    peers, calls = session.look()
    session.end_peer(1, PeerState.LEFT, "left")
    session.add_peer(3, "w3", 13)
    assert (sorted(peers), list(calls)) == ([1, 2], [call_id])


def test_an_unknown_rank_is_refused() -> None:
    """The error lists those that exist."""
    session = _session()
    with pytest.raises(UnknownPeer, match=r"known ranks: \[1, 2\]"):
        session.open_call(7, None)
    with pytest.raises(UnknownPeer):
        session.name_of(7)


def test_a_living_peer_keeps_its_rank() -> None:
    """A second worker cannot take over by saying that it is rank 1."""
    session = _session()
    with pytest.raises(LocalProtocolError, match="'w1', which is alive"):
        session.add_peer(1, "w1", 99)


def test_a_restarted_peer_is_another_one() -> None:
    """What the earlier life sent no longer counts, and it cannot come back itself."""
    session = _session()
    session.end_peer(1, PeerState.LOST, "it ended")
    with pytest.raises(LocalProtocolError, match="another incarnation"):
        session.add_peer(1, "w1", 11)
    session.add_peer(1, "w1", 21)
    assert session.accepts(1, 21)
    assert not session.accepts(1, 11)


def test_deadlines_end_calls_in_their_order() -> None:
    """A call ends at its deadline, not before and not much after."""
    session = _session()
    late, early, never = (session.open_call(1, at) for at in (3.0, 2.0, None))
    assert session.next_deadline_s() == 2.0
    assert session.on_tick(1.999) == []
    assert session.on_tick(3.0) == [early, late]
    assert session.next_deadline_s() is None
    assert session.find_call(never) is not None


def test_ended_calls_do_not_fill_the_memory_until_their_deadline() -> None:
    """A fast caller with a timeout of an hour keeps no more than what is open."""
    session = _session()
    for _ in range(10_000):
        call_id = session.open_call(1, 3600.0)
        session.on_reply(call_id, 1, 11)
    assert len(session._deadlines) < 200


def test_the_repr_counts() -> None:
    """A log line says how things stand."""
    session = _session()
    session.open_call(1, None)
    session.end_peer(2, PeerState.LEFT, "left")
    session.on_reply(99, 1, 11)
    assert repr(session) == "<Session peers=1 gone=1 pending=1 late=0 dropped=1>"


def test_calls_are_asked_about_once_if_they_were_sent_and_are_open() -> None:
    session = _session()
    unsent, ended, due, later = (
        session.open_call(1, 9.0, ask_at_s=at) for at in (1.0, 1.0, 1.0, 5.0)
    )
    for call_id in (ended, due, later):
        assert session.mark_sent(call_id) is not None
    session.on_reply(ended, 1, 11)
    assert session.next_deadline_s() == 1.0
    assert session.take_asks(2.0) == [due]
    assert session.take_asks(2.0) == []
    assert session.next_deadline_s() == 5.0
    assert session.find_call(unsent) is not None


def test_slow_calls_are_named_once() -> None:
    session = _session()
    first, second = (session.open_call(1, None, now_s=at) for at in (0.0, 1.0))
    assert session.take_slow(0.5, 9) == [first]
    assert session.take_slow(0.5, 9) == []
    assert session.take_slow(2.0, 9) == [second]


def test_many_slow_calls_are_named_a_few_at_a_time() -> None:
    session = _session()
    calls = [session.open_call(1, None) for _ in range(5)]
    session.on_reply(calls[2], 1, 11)
    assert session.take_slow(1.0, 3) == [calls[0], calls[1], calls[3]]
    assert session.take_slow(1.0, 3) == [calls[4]]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_call_that_could_not_be_sent_has_nothing_to_confirm(
    is_given_up: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """No callee knows of it, so none would ever let go of it."""
    session = _session()
    call_id = session.open_call(1, None)
    assert session.mark_sent(call_id) is not None
    if is_given_up:
        assert session.close_call(call_id)
        assert session.unconfirmed_count == 1
    session.mark_unsent(call_id)
    session.close_call(call_id)
    assert session.unconfirmed_count == 0


class SessionAgainstModel(RuleBasedStateMachine):
    """Whatever happens in whatever order, each call ends once, for the right reason."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.now_s = 0.0
        self.alive: dict[int, int] = {}
        self.last_incarnation = 0
        self.open: dict[int, tuple[int, int, float | None]] = {}
        self.sent: set[int] = set()
        self.unconfirmed: dict[int, tuple[int, int]] = {}
        self.used: set[int] = set()
        self.opened: dict[int, float] = {}
        self.slow: set[int] = set()
        self.late = 0
        self.dropped = 0

    @rule(rank=st.integers(0, 2))
    def join(self, rank: int) -> None:
        self.last_incarnation += 1
        if rank in self.alive:
            with pytest.raises(LocalProtocolError):
                self.session.add_peer(rank, f"w{rank}", self.last_incarnation)
        else:
            self.session.add_peer(rank, f"w{rank}", self.last_incarnation)
            self.alive[rank] = self.last_incarnation

    @rule(
        target=calls,
        rank=st.integers(0, 2),
        timeout_s=st.none() | st.integers(0, 5),
    )
    def call(self, rank: int, timeout_s: int | None) -> object:
        deadline_s = None if timeout_s is None else self.now_s + timeout_s
        if rank not in self.alive:
            with pytest.raises((UnknownPeer, PeerLost)):
                self.session.open_call(rank, deadline_s)
            return multiple()
        call_id = self.session.open_call(rank, deadline_s, now_s=self.now_s)
        assert call_id not in self.used
        self.opened[call_id] = self.now_s
        self.used.add(call_id)
        self.open[call_id] = (rank, self.alive[rank], deadline_s)
        return call_id

    @rule(call_id=calls, rank=st.integers(0, 2), age=st.integers(0, 1))
    def answer(self, call_id: int, rank: int, age: int) -> None:
        incarnation = self.alive.get(rank, self.last_incarnation) - age
        known = self.open.get(call_id)
        is_right = known is not None and known[:2] == (rank, incarnation)
        assert self.session.on_reply(call_id, rank, incarnation) == is_right
        if is_right:
            del self.open[call_id]
        elif known is None:
            self.late += 1
            if self.unconfirmed.get(call_id) == (rank, incarnation):
                del self.unconfirmed[call_id]
        else:
            self.dropped += 1

    @rule(call_id=calls)
    def send(self, call_id: int) -> None:
        found = self.session.mark_sent(call_id)
        assert (found is not None) == (call_id in self.open)
        if found is not None:
            self.sent.add(call_id)

    @rule(call_id=calls)
    def fail_to_send(self, call_id: int) -> None:
        self.session.mark_unsent(call_id)
        self.sent.discard(call_id)
        self.unconfirmed.pop(call_id, None)

    def end_early(self, call_id: int) -> None:
        rank, incarnation, _ = self.open.pop(call_id)
        if call_id in self.sent:
            self.unconfirmed[call_id] = (rank, incarnation)

    @rule(call_id=calls)
    def give_up(self, call_id: int) -> None:
        was_open = call_id in self.open
        assert self.session.close_call(call_id) == was_open
        if was_open:
            self.end_early(call_id)

    @rule(rank=st.integers(0, 2), state=st.sampled_from(GONE))
    def go(self, rank: int, state: PeerState) -> None:
        if self.alive.pop(rank, None) is None:
            with pytest.raises((UnknownPeer, PeerLost)):
                self.session.end_peer(rank, state, "gone")
            return
        expected = {i for i, call in self.open.items() if call[0] == rank}
        assert set(self.session.end_peer(rank, state, "gone")) == expected
        for call_id in expected:
            del self.open[call_id]
        for call_id in [i for i, c in self.unconfirmed.items() if c[0] == rank]:
            del self.unconfirmed[call_id]

    @rule(seconds=st.integers(0, 3))
    def let_time_pass(self, seconds: int) -> None:
        self.now_s += seconds
        expected = {
            i for i, c in self.open.items() if c[2] is not None and c[2] <= self.now_s
        }
        ended = self.session.on_tick(self.now_s)
        assert len(ended) == len(set(ended))
        assert set(ended) == expected
        for call_id in expected:
            self.end_early(call_id)

    @rule(earlier=st.integers(0, 3), most=st.integers(1, 3))
    def look_for_slow(self, earlier: int, most: int) -> None:
        before_s = self.now_s - earlier
        due = [i for i, at in self.opened.items() if i in self.open and at <= before_s]
        taken = self.session.take_slow(before_s, most)
        assert taken == [i for i in due if i not in self.slow][:most]
        self.slow.update(taken)

    @rule()
    def close(self) -> None:
        assert set(self.session.on_close()) == set(self.open)
        self.open.clear()
        self.unconfirmed.clear()

    @invariant()
    def agrees(self) -> None:
        assert self.session.pending_count == len(self.open)
        assert self.session.alive_count == len(self.alive)
        assert self.session.late_replies == self.late
        assert self.session.unconfirmed_count == len(self.unconfirmed)
        for call_id, (rank, incarnation) in self.unconfirmed.items():
            call = self.session.find_unconfirmed(call_id)
            assert call is not None
            assert call[:2] == (rank, incarnation)
        assert self.session.dropped_replies == self.dropped
        deadlines = [c[2] for c in self.open.values() if c[2] is not None]
        next_s = self.session.next_deadline_s()
        assert not deadlines or (next_s is not None and next_s <= min(deadlines))
        for rank, incarnation in self.alive.items():
            assert self.session.accepts(rank, incarnation)


TestSessionAgainstModel = SessionAgainstModel.TestCase
