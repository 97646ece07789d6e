"""A process that decodes as many copies of its input as a body may hold.

Prints how many these were, and by how many bytes they made this process grow.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import numpy  # noqa: F401, ICN001 - arrays are made only where it was imported

from rpcfut._decode import cost_of, decode
from rpcfut._wire_weights import FREE_NBYTES


def list_of(unit: bytes, count: int) -> bytes:
    """A body that holds a packed value some times."""
    return b"\xdd" + struct.pack(">I", count) + unit * count


def _peak_nbytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _main(unit: bytes) -> None:
    decode(list_of(unit, 2), [], place=lambda tensor, _: tensor)  # warms up
    each = cost_of(list_of(unit, 2)) - cost_of(list_of(unit, 1))
    count = (FREE_NBYTES - 1000) // each
    body = list_of(unit, count)
    before = _peak_nbytes()
    value = decode(body, [], place=lambda tensor, _: tensor)
    assert len(value) == count  # type: ignore[arg-type]
    print(count, _peak_nbytes() - before)  # noqa: T201


if __name__ == "__main__":
    _main(sys.stdin.buffer.read())
