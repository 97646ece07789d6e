"""What is told about a call: whether it is here, as a byte, and where, in words."""

from __future__ import annotations

_NOT_HERE, _HERE = b"\0", b"\1"
_MAX_NBYTES = 2000
_NOWHERE = "not to be found: it has not arrived, or its answer is on the way"


def encode_told(text: str | None) -> bytes:
    """Write where a call is; None for one that is not here."""
    if text is None:
        return _NOT_HERE + _NOWHERE.encode()
    return (_HERE + text.encode())[:_MAX_NBYTES]


def decode_told(body: memoryview) -> tuple[bool, str] | None:
    """Read whether a call is there, and where; None for what makes no sense.

    The words come from a peer: what cannot be printed is replaced.
    """
    raw = bytes(body[: _MAX_NBYTES + 1])
    if len(raw) > _MAX_NBYTES or raw[:1] not in {_NOT_HERE, _HERE}:
        return None
    text = raw[1:].decode(errors="replace")
    return raw[:1] == _HERE, "".join(c if c.isprintable() else "?" for c in text)
