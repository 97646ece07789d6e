"""The threads that read an inbox while nobody waits, and run what comes of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._calls import Work


class Crew(Protocol):
    """Threads that run work. Any thread may call it; nothing here blocks."""

    def start_reader(self, read: Callable[[], None]) -> bool:
        """Have a thread run `read`, which does not count as work; False if none can."""
        ...

    def enter(self) -> bool:
        """Count the calling reader as working; False when it must not work now."""
        ...

    def leave(self) -> Work | None:
        """Undo `enter`; or, still entered, return work that waited for a thread."""
        ...

    def submit(self, work: Work) -> None:
        """Have a thread do some work, soon."""
        ...

    def put_off(self, works: Sequence[Work]) -> None:
        """Have work done by whoever works now, or by others after a `relieve`."""
        ...

    def relieve(self) -> None:
        """Have another thread do what was put off, if nobody came to it lately."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether work waits, so that whoever works now goes on with it."""
        ...


class Threads:
    """A crew without a pool: a thread for each reader and each piece of work.

    Args:
        name: Name of the worker, for the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<Threads of {self._name!r}>"

    def start_reader(self, read: Callable[[], None]) -> bool:
        """See `Crew.start_reader`."""
        self._start(read, "reader")
        return True

    def enter(self) -> bool:
        """See `Crew.enter`; reading goes on."""
        return False

    def leave(self) -> Work | None:
        """See `Crew.leave`."""
        return None

    def submit(self, work: Work) -> None:
        """See `Crew.submit`."""
        self._start(work, "work")

    def put_off(self, works: Sequence[Work]) -> None:
        """See `Crew.put_off`; nothing is."""
        for work in works:
            self.submit(work)

    def relieve(self) -> None:
        """See `Crew.relieve`."""

    @property
    def has_more(self) -> bool:
        """See `Crew.has_more`."""
        return False

    def _start(self, work: Work, what: str) -> None:
        name = f"rpcfut-{what}-{self._name}"
        threading.Thread(target=work, name=name, daemon=True).start()
