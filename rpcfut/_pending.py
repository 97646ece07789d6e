"""What one worker waits for and works on: a picture that can be sent and printed.

No value of an argument is ever in it: those may be secret, and may be large.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeVar

from rpcfut._error_text import clean_line
from rpcfut._text_table import kibibytes, seconds, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MAX_TEXT = 300
_MAX_TABLE_NBYTES = 80_000
_INDENT = "  "
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}
R = TypeVar("R", bound="Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What all rows of a report can do."""

    HEAD: ClassVar[tuple[str, ...]] = ()

    def cells(self) -> tuple[str, ...]:
        """The row as texts, one for each of `HEAD`."""
        raise NotImplementedError

    def check(self) -> None:
        """Check what came from another process.

        Raises:
            TypeError: When a field has another type than it is declared with.
        """
        for field in fields(self):
            wanted = _JSON_TYPES[str(field.type)]
            value = getattr(self, field.name)
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise TypeError(f"{field.name}: wanted {field.type}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall(Row):
    """A call that the worker made and that has not ended.

    Args:
        to: Name of the worker that is to answer.
        function: What was called.
        age_s: For how long it has been open, in seconds.
        left_s: How long until its deadline, in seconds; None if it has none.
        stage: How far it got, and what the callee last said.
        site: ``file:line`` where the call was made.
    """

    HEAD = ("TO", "FUNCTION", "AGE", "LEFT", "STAGE", "CALLED AT")

    to: str
    function: str
    age_s: float
    left_s: float | None
    stage: str
    site: str

    def cells(self) -> tuple[str, ...]:
        """See `Row.cells`."""
        times = seconds(self.age_s), seconds(self.left_s)
        return (self.to, self.function, *times, self.stage, self.site)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHere(Row):
    """A call that the worker serves.

    Args:
        caller: Name of the worker that called.
        function: What it called.
        age_s: For how long it has been here, in seconds.
        left_s: How long the caller will still wait, in seconds; None for ever.
        stage: Where it is, and since when.
        thread: The thread that runs its function now; empty if none does.
        at: Where that thread is; empty if there is none.
    """

    HEAD = ("FROM", "FUNCTION", "AGE", "LEFT", "STAGE", "THREAD", "WHERE THAT IS")

    caller: str
    function: str
    age_s: float
    left_s: float | None
    stage: str
    thread: str
    at: str

    def cells(self) -> tuple[str, ...]:
        """See `Row.cells`."""
        times = seconds(self.age_s), seconds(self.left_s)
        place = self.thread or "-", self.at or "-"
        return (self.caller, self.function, *times, self.stage, *place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Row):
    """A worker of the group, as this one sees it.

    Args:
        name: Its name.
        rank: Its rank.
        state: ``alive``, ``left`` or ``lost``.
        reason: Why it is gone; empty while it is alive.
        open_calls: How many calls to it are open.
        queued_nbytes: How many bytes wait to be sent to it; None if nobody counts.
        seen_s: How long ago its last message came, in seconds; None if nobody noted.
    """

    HEAD = ("NAME", "RANK", "OPEN CALLS", "QUEUED", "LAST SEEN", "STATE")

    name: str
    rank: int
    state: str
    reason: str
    open_calls: int
    queued_nbytes: int | None
    seen_s: float | None

    def cells(self) -> tuple[str, ...]:
        """See `Row.cells`."""
        state = f"{self.state}: {self.reason}" if self.reason else self.state
        traffic = kibibytes(self.queued_nbytes), seconds(self.seen_s, " ago")
        return (self.name, str(self.rank), str(self.open_calls), *traffic, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """What one worker waits for and works on. Immutable; `str` makes it tables.

    The tables may be cut, oldest calls first: the counts say how many there are.

    Args:
        worker: Its name.
        rank: Its rank.
        pid: Its process, as that sees itself.
        state: ``joining``, ``running``, ``leaving`` or ``closed``.
        threads: What its pool of threads is doing.
        made_count: How many calls that it made are open.
        served_count: How many calls it serves.
        peer_count: How many workers it knows.
        made: The calls that it made.
        served: The calls that it serves.
        peers: The workers that it knows, itself included.
    """

    worker: str
    rank: int
    pid: int
    state: str
    threads: str
    made_count: int
    served_count: int
    peer_count: int
    made: Sequence[MadeCall]
    served: Sequence[CallHere]
    peers: Sequence[Peer]

    @property
    def is_empty(self) -> bool:
        """Whether no call is pending, neither made nor served."""
        return self.made_count == 0 and self.served_count == 0

    def __str__(self) -> str:
        """As plain text, in lines; safe to print on a terminal."""
        counts = f"{self.made_count} made and {self.served_count} served"
        who = f"worker {self.worker} (rank {self.rank}, process {self.pid})"
        lines = [clean_line(f"{who}, {self.state}: {counts} calls are pending")]
        lines += _titled("made, oldest first", MadeCall, self.made, self.made_count)
        lines += _titled(
            "served, oldest first", CallHere, self.served, self.served_count
        )
        lines.append(f"{_INDENT}threads: {clean_line(self.threads)}")
        lines += _titled("peers", Peer, self.peers, self.peer_count)
        return "\n".join(lines)

    def to_json(self) -> bytes:
        """Write it down, in some 250 kB at most."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> PendingReport:
        """Read what another process has written.

        Raises:
            ValueError: When it is no report.
        """
        try:
            read = json.loads(data)
            for name, row in _TABLES.items():
                read[name] = [row(**each) for each in read[name]]
            report = cls(**read)
            report._check()
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"this is no report of pending calls: {error}") from error
        return report

    def _check(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _TABLES:
                for row in value:
                    row.check()
            elif not isinstance(value, _JSON_TYPES[str(field.type)]):
                raise TypeError(f"{field.name}: wanted {field.type}, got {value!r}")


_TABLES: dict[str, type[Row]] = {"made": MadeCall, "served": CallHere, "peers": Peer}


def cut(text: str) -> str:
    """Cut a text that may be long."""
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def fitting(rows: Iterable[R]) -> list[R]:
    """The first rows, as many as fit into a table of a report."""
    kept: list[R] = []
    left = _MAX_TABLE_NBYTES
    for row in rows:
        left -= len(json.dumps(asdict(row))) + 2
        if left < 0:
            break
        kept.append(row)
    return kept


def _titled(
    title: str, kind: type[Row], rows: Sequence[Row], count: int
) -> Iterator[str]:
    if rows:
        cut_short = f" ({len(rows)} of {count})" if len(rows) < count else ""
        yield f"{_INDENT}{title}{cut_short}:"
        for line in table(kind.HEAD, (row.cells() for row in rows)):
            yield f"{_INDENT * 2}{line}"
