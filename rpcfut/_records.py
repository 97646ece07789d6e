"""What workers publish of themselves: the one place where it is written and read.

Records come from a store that anyone may write to, or in the message of a worker that
nobody knows yet, so they are hostile input: sizes and types are checked here, addresses
again by the link.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from rpcfut._errors import RendezvousError
from rpcfut_transport import PeerRecord

MAX_RECORD_NBYTES = 64 << 10
OPEN = 0  # the world size of a group without one

_TYPES = {"int": int, "str": str}
_FIELDS = {field.name: _TYPES[str(field.type)] for field in fields(PeerRecord)}
_WORLD_SIZE = "world_size"


def write_record(record: PeerRecord, world_size: int) -> str:
    """The text that says who a worker is.

    Args:
        record: Who it is.
        world_size: Size of its group; `OPEN` if that has none.
    """
    known = {name: getattr(record, name) for name in _FIELDS}
    return json.dumps({**known, _WORLD_SIZE: world_size})


def read_record(raw: bytes, rank: int, world_size: int) -> PeerRecord:
    """Check a text that anyone may have written.

    Args:
        raw: The text.
        rank: Whose it must be.
        world_size: What it must say of the group.

    Raises:
        RendezvousError: When it is malformed, or says something else; names the rank.
    """
    if len(raw) > MAX_RECORD_NBYTES:
        raise RendezvousError(
            f"the record of rank {rank} has {len(raw)} bytes, more than "
            f"{MAX_RECORD_NBYTES}"
        )
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RendezvousError(f"the record of rank {rank} is malformed") from error
    if not _is_good(found) or found["rank"] != rank:
        raise RendezvousError(
            f"the record of rank {rank} is malformed: {str(found)[:500]!r}"
        )
    theirs = found.pop(_WORLD_SIZE)
    if theirs != world_size:
        raise RendezvousError(
            f"this worker was told that the group has {_show(world_size)}, rank {rank} "
            f"that it has {_show(theirs)}"
        )
    return PeerRecord(**found)


def _is_good(found: Any) -> bool:
    wanted = {**_FIELDS, _WORLD_SIZE: int}
    return (
        isinstance(found, dict)
        and found.keys() == wanted.keys()
        and all(type(found[name]) is kind for name, kind in wanted.items())
        and 0 <= found["rank"] < 1 << 32
        and 0 < found["incarnation"] < 1 << 63
        and 0 < found["pid"] < 1 << 31
        and found["address"].isascii()
        and found["name"].isascii()
        and found["name"].isprintable()
    )


def _show(world_size: int) -> str:
    return "no fixed size" if world_size == OPEN else f"{world_size} workers"
