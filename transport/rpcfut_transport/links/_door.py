"""Which keys may connect by TCP, and whose they are.

Theory of operation. ZeroMQ asks about each handshake, by messages to a socket of a
fixed name in its context (ZAP, RFC 27); one thread answers. A key that is known is let
in, and each message that comes in by its connection carries it as its user id.

An unknown key is not answered at first: the record of its owner may just be read, or
its owner may introduce itself. For that there is one key pair that all members derive
from the key of the group. Whoever connects with it has shown that it is a member, but
not which one; all it may say is which key it will use next. That key is let in as one
that belongs to no rank yet.

Once all that exist are known, a stranger is told no, after a moment. That is final: its
ZeroMQ does not connect again. One that is told nothing comes back for ever, and cannot
tell a wrong key from a peer that is busy; so it is told nothing only for as long as its
record may not have been read.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import zmq

from rpcfut_transport._clock import MonotonicClock
from rpcfut_transport.links._curve import encode_key

_log = logging.getLogger(__name__)

DOMAIN = b"rpcfut"
NOBODY = b""  # the rank of a key that belongs to none yet

_ADDRESS = "inproc://zeromq.zap.01"  # libzmq's
_VERSION = b"1.0"
_PATIENCE_S = 2.0
_LIFE_S = 6.0  # of a handshake, which ends by itself before
_LOOK_MS = 10
_MAX_WAITING = 1000
_MAX_GUESTS = 1000
_JOIN_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A handshake that waits for an answer."""

    head: list[bytes]  # what goes in front of the answer
    key: str
    since_s: float


class Door:
    """Lets keys in. Any thread, `close` included; owns one thread.

    Args:
        context: Whose handshakes it decides; each context has one door at most.
        guest_key: The public key with which members introduce themselves.
        name: Whose door it is, for the thread.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], guest_key: str, name: str
    ) -> None:
        self._lock = threading.Lock()
        self._guest_key = guest_key
        self._ranks: dict[str, bytes] = {}  # by key; read without the lock
        self._guests: dict[str, None] = {}  # keys of no rank, the oldest first
        self._clock = MonotonicClock()
        self._refused = 0
        self._is_strict = False
        self._is_closed = False
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def refused_count(self) -> int:
        """How many handshakes were told no."""
        return self._refused

    def rank_of(self, key: str) -> bytes | None:
        """Whose key it is, as `admit` was told; `NOBODY` for a guest's; else None."""
        return self._ranks.get(key)

    def admit(self, key: str, rank: bytes) -> None:
        """Let a key in, as that of a rank; what that had before is not any longer."""
        with self._lock:
            self._forget_locked(rank)
            self._guests.pop(key, None)
            self._ranks[key] = rank

    def admit_guest(self, key: str) -> None:
        """Let a key in that belongs to no rank yet; for a while, if many come."""
        with self._lock:
            if key in self._ranks:
                return
            self._ranks[key] = NOBODY
            self._guests[key] = None
            if len(self._guests) > _MAX_GUESTS:
                oldest = next(iter(self._guests))
                del self._guests[oldest], self._ranks[oldest]

    def forget(self, rank: bytes) -> None:
        """Let the key of a rank in no more, nor use what comes from it."""
        with self._lock:
            self._forget_locked(rank)

    def refuse_strangers(self) -> None:
        """Tell those no, from now on, whose keys are still not known after a moment."""
        self._is_strict = True

    def close(self) -> None:
        """Let nobody in any more. Idempotent; does not wait.

        The thread ends with the context.
        """
        with self._lock:
            self._is_closed = True
            self._guest_key = ""
            self._ranks.clear()
            self._guests.clear()

    def join(self) -> None:
        """Wait, for 2 s at most, for the thread of a context that is terminated."""
        self._thread.join(_JOIN_TIMEOUT_S)

    def _forget_locked(self, rank: bytes) -> None:
        for key in [key for key, owner in self._ranks.items() if owner == rank]:
            del self._ranks[key]

    def _run(self) -> None:
        waiting: list[_Asked] = []
        try:
            while True:
                if self._socket.poll(_LOOK_MS if waiting else None):
                    asked = self._read(self._socket.recv_multipart())
                    if asked is not None:
                        waiting.append(asked)
                waiting = self._answer(waiting)
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _read(self, frames: list[bytes]) -> _Asked | None:
        """Take a question; only libzmq in this process can ask."""
        start = frames.index(b"") + 1
        version, number, domain, _, _, mechanism, *credentials = frames[start:]
        if version != _VERSION or domain != DOMAIN or mechanism != b"CURVE":
            _log.warning("a handshake of kind %r is refused", mechanism)
            return None  # unanswered is refused
        return _Asked(
            head=[*frames[:start], version, number],
            key=encode_key(credentials[0]),
            since_s=self._clock.now_s(),
        )

    def _answer(self, waiting: list[_Asked]) -> list[_Asked]:
        """Answer what can be answered; return the rest."""
        now_s = self._clock.now_s()
        kept = []
        for asked in waiting[-_MAX_WAITING:]:
            waited_s = now_s - asked.since_s
            if asked.key in self._ranks or asked.key == self._guest_key:
                self._say(asked, b"200", b"")
            elif self._is_strict and waited_s >= _PATIENCE_S:
                self._refused += 1
                self._say(asked, b"400", b"this key is not known here")
            elif waited_s < _LIFE_S:
                kept.append(asked)
        return kept

    def _say(self, asked: _Asked, status: bytes, text: bytes) -> None:
        user = asked.key.encode() if status == b"200" else b""
        self._socket.send_multipart([*asked.head, status, text, user, b""])

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Door {state} keys={len(self._ranks)} refused={self._refused}>"
