"""Faults of a network, put in on purpose and counted, for tests of what stands on it.

Theory of operation: every message between two memory links passes the plan of their
network. Each rule counts the messages that fit it, and the first one that fires says
what happens to the message. What is kept back waits in the plan, so that a test decides
when it arrives, if ever. The dice are seeded, and each rule has its own: with one
sending thread, a run repeats itself.
"""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from rpcfut_transport._errors import LocalProtocolError, RemoteProtocolError
from rpcfut_transport._wire import HEADER_NBYTES, Kind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    Message = list[bytes | memoryview]
    Deliver = Callable[[Message], None]


class FaultKind(Enum):
    """What happens to a message."""

    DROP = "drop"  # it never arrives
    DOUBLE = "double"  # it arrives twice
    DELAY = "delay"  # it arrives when the test says so
    REORDER = "reorder"  # it arrives after the next one on its way
    TRUNCATE = "truncate"  # its end is missing: bytes, or whole frames
    CORRUPT = "corrupt"  # some of its bytes are others


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """Which messages something happens to. None stands for any.

    Messages that were sent as one, as a BATCH, count as one.

    Args:
        fault: What happens.
        kind: Of the messages.
        sender: Rank of who sent them, as their headers say.
        receiver: The rank that they were sent to.
        at: The numbers of those that it happens to, among the ones that fit, from 1.
        chance: How likely it happens to any other that fits, from 0 to 1.
        header_only: Whether CORRUPT spares what follows the header.

    Raises:
        LocalProtocolError: When it could never fire.
    """

    fault: FaultKind
    kind: Kind | None = None
    sender: int | None = None
    receiver: int | None = None
    at: frozenset[int] = frozenset()
    chance: float = 0.0
    header_only: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1 or any(number < 1 for number in self.at):
            raise LocalProtocolError(
                f"chance is from 0 to 1 and numbers start at 1: {self!r}"
            )
        if not self.at and not self.chance:
            raise LocalProtocolError(f"say `at` or `chance`, or it never fires: {self}")

    def fits(self, kind: Kind | None, sender: int | None, receiver: int) -> bool:
        """Say whether it is about such a message."""
        return (
            self.kind in {None, kind}
            and self.sender in {None, sender}
            and self.receiver in {None, receiver}
        )


class _Dice:
    """What one rule has seen and done so far."""

    __slots__ = ("fired", "fitted", "random", "rule")

    def __init__(self, rule: FaultRule, seed: str) -> None:
        self.rule = rule
        self.random = random.Random(seed)  # noqa: S311 - faults, not secrets
        self.fitted = 0
        self.fired = 0

    def roll(self) -> bool:
        """Count a message that fits; say whether the rule fires."""
        self.fitted += 1
        is_hit = self.random.random() < self.rule.chance
        return self.fitted in self.rule.at or is_hit


class FaultPlan:
    """What goes wrong in a `MemoryNetwork`. Any thread; one plan a network.

    As a context manager it makes sure, when the block ends without an error, that each
    rule has fired: a test whose fault never came about proves nothing.

    Args:
        rules: What happens to which messages; of several that fire, the first.
        seed: Of the dice.
    """

    def __init__(self, rules: Iterable[FaultRule], seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._dice = [
            _Dice(rule, f"{seed}/{index}") for index, rule in enumerate(rules)
        ]
        self._delayed: list[tuple[Deliver, Message]] = []
        self._overtaken: dict[object, list[tuple[Deliver, Message]]] = {}
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.require_fired()

    def require_fired(self) -> None:
        """Make sure that each rule has fired.

        Raises:
            AssertionError: When one has not; says how many messages fitted it.
        """
        silent = [dice for dice in self._dice if not dice.fired]
        if silent:
            raise AssertionError(
                "these faults never came about: "
                + ", ".join(f"{dice.rule} ({dice.fitted} fitted)" for dice in silent)
            )

    def count(self, fault: FaultKind) -> int:
        """Return how many messages this happened to."""
        with self._lock:
            return sum(d.fired for d in self._dice if d.rule.fault is fault)

    @property
    def delayed_count(self) -> int:
        """How many messages are kept back, delayed or to be overtaken."""
        with self._lock:
            return len(self._delayed) + sum(map(len, self._overtaken.values()))

    def release(self) -> int:
        """Let all that is kept back arrive, each way's in its order; how many."""
        with self._lock:
            kept = self._delayed
            for overtaken in self._overtaken.values():
                kept += overtaken
            self._delayed, self._overtaken = [], {}
            for deliver, message in kept:
                deliver(message)
        return len(kept)

    def stop(self) -> int:
        """Let all later messages pass, and what is kept back; how many that were."""
        with self._lock:
            self._is_over = True
        return self.release()

    def pass_on(
        self, way: object, receiver: int, message: Message, deliver: Deliver
    ) -> None:
        """Deliver a message, or do to it what the rules say.

        Args:
            way: From whom to whom; reordering is among the messages of one way.
            receiver: The rank that it was sent to.
            message: Its frames, which nobody else holds.
            deliver: Puts a message into the receiver's inbox; does not block.
        """
        with self._lock:
            dice = None if self._is_over else self._find_locked(receiver, message)
            if dice is None:
                self._deliver_locked(way, [message], deliver)
                return
            dice.fired += 1
            match dice.rule.fault:
                case FaultKind.DROP:
                    pass
                case FaultKind.DOUBLE:
                    self._deliver_locked(way, [message, _copied(message)], deliver)
                case FaultKind.DELAY:
                    self._delayed.append((deliver, message))
                case FaultKind.REORDER:
                    self._overtaken.setdefault(way, []).append((deliver, message))
                case _:
                    spoilt = _SPOILERS[dice.rule.fault](message, dice)
                    self._deliver_locked(way, [spoilt], deliver)

    def _find_locked(self, receiver: int, message: Message) -> _Dice | None:
        kind = sender = None
        try:
            header = decode_header(message[0])
            kind, sender = header.kind, header.sender_rank
        except RemoteProtocolError:
            pass  # no message of an endpoint; rules for any kind fit it all the same
        found = None
        for dice in self._dice:
            if dice.rule.fits(kind, sender, receiver) and dice.roll():
                found = found or dice
        return found

    def _deliver_locked(
        self, way: object, messages: list[Message], deliver: Deliver
    ) -> None:
        for message in messages:
            deliver(message)
        for late_deliver, late in self._overtaken.pop(way, ()):
            late_deliver(late)

    def __repr__(self) -> str:
        with self._lock:
            fired = ", ".join(f"{d.rule.fault.value} {d.fired}" for d in self._dice)
        state = "over" if self._is_over else "running"
        return f"<FaultPlan {state}: {fired or 'no rules'}; {self.delayed_count} kept>"


def _copied(message: Message) -> Message:
    first, *others = message
    return [bytes(first), *(memoryview(bytearray(frame)) for frame in others)]


def _truncated(message: Message, dice: _Dice) -> Message:
    """Cut a message: nothing of what follows a point in it arrives."""
    left = dice.random.randrange(max(sum(map(len, message)), 1))
    starts = itertools.accumulate(map(len, message), initial=0)
    return [
        frame[: left - start]
        for start, frame in zip(starts, message, strict=False)  # the last is the end
        if start <= left
    ]


def _corrupted(message: Message, dice: _Dice) -> Message:
    """Change one to three bytes somewhere in a message."""
    whole = bytearray().join(message)
    reach = min(len(whole), HEADER_NBYTES) if dice.rule.header_only else len(whole)
    for at in dice.random.sample(range(reach), min(dice.random.randint(1, 3), reach)):
        whole[at] ^= dice.random.randint(1, 255)
    rest = memoryview(whole)
    frames: Message = []
    for frame in message:
        frames.append(rest[: len(frame)])
        rest = rest[len(frame) :]
    return [bytes(frames[0]), *frames[1:]]


_SPOILERS = {FaultKind.TRUNCATE: _truncated, FaultKind.CORRUPT: _corrupted}
