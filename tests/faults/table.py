"""All rows and all faults, one module a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults import bounds, calls, futures, network, session, streams, transport

if TYPE_CHECKING:
    from tests.faults.fault import Fault

_PARTS = (futures, streams, calls, session, network, transport, bounds)
ROWS: tuple[str, ...] = tuple(row for part in _PARTS for row in part.ROWS)
FAULTS: tuple[Fault, ...] = tuple(fault for part in _PARTS for fault in part.FAULTS)


def mistakes() -> list[str]:
    """What is wrong with the tables, in words; nothing if they are fine."""
    known = {fault.row for fault in FAULTS}
    found = [f"{row} has no fault" for row in ROWS if row not in known]
    found += [f"{row} is no part's row" for row in sorted(known - set(ROWS))]
    found += [
        f"{fault.row}: {fault.path}: {fault.what!r} does not apply exactly once"
        for fault in FAULTS
        if not fault.applies()
    ]
    return found
