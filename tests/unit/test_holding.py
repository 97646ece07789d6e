"""Owners whose allocator knows one stream only are held for their readers."""

from __future__ import annotations

import gc
import weakref

from rpcfut._holding import Holding


class Owner:
    """Some other library's array."""


class Event:
    """Has passed when the test says so."""

    def __init__(self) -> None:
        self.has_passed = False

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        self.has_passed = True


class Streams:
    """Records events, and remembers them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_idle = False

    def record(self, stream: object) -> Event | None:
        if self.is_idle:
            return None
        self.events.append(Event())
        return self.events[-1]


def test_b52_str11_an_owner_lives_until_its_readers_are_through():
    streams = Streams()
    holding = Holding(streams.record)
    owner = Owner()
    alive = weakref.ref(owner)
    holding.hold(owner, "s1")
    holding.hold(owner, "s2")
    holding.hold(owner, "s1")
    del owner
    holding.sweep()
    assert len(streams.events) == 2  # one per stream, now that it is only ours
    streams.events[0].has_passed = True
    holding.sweep()
    assert alive() is not None
    streams.events[1].has_passed = True
    holding.sweep()
    gc.collect()
    assert alive() is None
    assert len(holding) == 0


def test_an_owner_that_somebody_holds_records_nothing() -> None:
    """Its readers may still queue work; what counts is what they hold at the end."""
    streams = Streams()
    holding = Holding(streams.record)
    owner = Owner()
    holding.hold(owner, "s")
    holding.sweep()
    assert streams.events == []
    assert len(holding) == 1
    del owner
    streams.is_idle = True
    holding.sweep()
    assert len(holding) == 0


def test_an_owner_that_is_read_again_starts_anew() -> None:
    streams = Streams()
    holding = Holding(streams.record)
    owner = Owner()
    holding.hold(owner, "s")
    alive = weakref.ref(owner)
    del owner
    holding.sweep()
    again = alive()
    holding.hold(again, "s")
    streams.events[0].has_passed = True
    holding.sweep()
    assert len(holding) == 1
    del again
    holding.sweep()
    streams.events[-1].has_passed = True
    holding.sweep()
    assert alive() is None
