"""When a way that does not open is hopeless, and when it is only slow."""

from __future__ import annotations

from rpcfut_transport.links._handshake import Handshake


def _hang_up(handshake: Handshake, at_s: float, after_s: float = 0.0) -> bool:
    handshake.on_connected(at_s)
    return handshake.on_broken(at_s + after_s)


def test_who_hangs_up_at_once_again_and_again_has_another_key() -> None:
    """B89: it looks exactly like a host that is down, but for this."""
    handshake = Handshake()
    said = [_hang_up(handshake, tenth / 10) for tenth in range(12)]
    assert said.index(True) == 10


def test_one_that_ends_while_we_connect_has_not() -> None:
    """Twice, or three times in a moment, proves nothing."""
    handshake = Handshake()
    assert not any(_hang_up(handshake, t) for t in (0.0, 0.1, 0.2))
    assert not any(_hang_up(Handshake(), t) for t in (0.0, 5.0))


def test_one_that_hangs_up_late_is_busy() -> None:
    """So it does if its interpreter is stopped, or its record of us not read yet."""
    handshake = Handshake()
    assert not any(_hang_up(handshake, 6.0 * n, 5.0) for n in range(20))
    for tenth in range(8):
        assert not _hang_up(handshake, 200 + tenth / 10)
    assert not _hang_up(handshake, 201.0, 5.0)
    assert not _hang_up(handshake, 207.0)


def test_a_right_key_makes_up_for_all_before() -> None:
    """The connection broke later, which is no refusal."""
    handshake = Handshake()
    for tenth in range(9):
        assert not _hang_up(handshake, tenth / 10)
    handshake.on_connected(2.0)
    handshake.on_done()
    assert not handshake.on_broken(2.5)
    assert not _hang_up(handshake, 3.0)


def test_a_host_that_is_down_refuses_nothing() -> None:
    """Nobody accepted the connection, so nobody refused a key."""
    handshake = Handshake()
    assert not any(handshake.on_broken(t) for t in (0.0, 1.0, 2.0, 3.0))
