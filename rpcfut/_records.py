"""What workers publish of themselves: the one place where it is written and read.

Records come from a store that anyone may write to, or in the message of a worker that
nobody knows yet, so they are hostile input: sizes and types are checked here, addresses
again by the link. With a secret they are signed.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from rpcfut._errors import RendezvousError
from rpcfut._secret import Signer
from rpcfut_transport import PeerRecord

MAX_RECORD_NBYTES = 64 << 10
OPEN = 0  # the world size of a group without one

_TYPES = {"int": int, "str": str}
_FIELDS = {field.name: _TYPES[str(field.type)] for field in fields(PeerRecord)}
_WORLD_SIZE = "world_size"


class RecordForm:
    """How the workers of one group write who they are. Any thread; does not change.

    Args:
        world_size: Size of the group; `OPEN` if it has none.
        signer: Signs the own record, and knows those of the group; by default records
            are not signed.
    """

    def __init__(self, world_size: int, signer: Signer | None = None) -> None:
        self.world_size = world_size
        self.signer = signer or Signer(None, "")

    def __repr__(self) -> str:
        return f"<RecordForm {_show(self.world_size)} {self.signer!r}>"

    def write(self, record: PeerRecord) -> str:
        """The text that says who a worker is."""
        known = {name: getattr(record, name) for name in _FIELDS}
        text = json.dumps({**known, _WORLD_SIZE: self.world_size})
        return self.signer.sign(text)

    def read(self, raw: bytes, rank: int) -> PeerRecord:
        """Check a text that anyone may have written.

        Args:
            raw: The text.
            rank: Whose it must be.

        Raises:
            RendezvousError: When it is malformed, or of another group; names the rank.
            AuthenticationError: When it is not signed as the own one is.
        """
        if len(raw) > MAX_RECORD_NBYTES:
            raise RendezvousError(
                f"the record of rank {rank} has {len(raw)} bytes, more than "
                f"{MAX_RECORD_NBYTES}"
            )
        text = self.signer.verify(raw, f"rank {rank}")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RendezvousError(f"the record of rank {rank} is malformed") from error
        if not _is_good(found) or found["rank"] != rank:
            raise RendezvousError(
                f"the record of rank {rank} is malformed: {str(found)[:500]!r}"
            )
        theirs = found.pop(_WORLD_SIZE)
        if theirs != self.world_size:
            raise RendezvousError(
                f"this worker was told that the group has {_show(self.world_size)}, "
                f"rank {rank} that it has {_show(theirs)}"
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
