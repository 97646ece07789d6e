"""The short way for values that msgpack carries as they are.

Theory of operation. Most small calls carry nothing but None, booleans, numbers and
short texts. Their bytes are the same as those of the long way (`_encode`, `_decode`),
which walks a value and lifts what it read; here one look at the types says that there
is nothing to walk or to lift. Whatever is not that simple is not handled here: each
function says so, and the long way does it, with all checks and messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from rpcfut._encode import Encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_TEXT: Final = frozenset({str})
_MAX_PARTS: Final = 16
_MAX_TEXT: Final = 256
_MAX_NBYTES: Final = 16 * (_MAX_TEXT + 8)
_EMPTY: Final[dict[str, Any]] = {}
_NIL: Final = Encoded(b"\xc0", [])

NOT_PLAIN: Final = object()


def encode_plain(value: object) -> Encoded | None:
    """Encode a value as `encode` would, if it is plain; else None."""
    if value is None:
        return _NIL
    if type(value) not in _PLAIN or (type(value) is str and len(value) > _MAX_TEXT):
        return None
    return _pack(value)


def encode_plain_request(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Encoded | None:
    """Encode a call as `encode` would, if its arguments are few and plain; else None.

    Also when they are no arguments at all: the long way says what is wrong.
    """
    kind = type(args)
    if (kind is not tuple and kind is not list) or not _are_plain(args):
        return None
    if not kwargs:
        kwargs = _EMPTY
    elif (
        type(kwargs) is not dict
        or not _TEXT.issuperset(map(type, kwargs))
        or not _are_plain(list(kwargs.values()))
    ):
        return None
    return _pack([name, list(args), kwargs])


def _are_plain(parts: Sequence[Any]) -> bool:
    if len(parts) > _MAX_PARTS or not _PLAIN.issuperset(map(type, parts)):
        return False
    return all(len(part) <= _MAX_TEXT for part in parts if type(part) is str)


def _pack(value: object) -> Encoded | None:
    packer = msgpack.Packer(
        strict_types=True,
        use_bin_type=True,
        buf_size=1024,  # type: ignore[call-arg] # the stubs do not have it
    )
    try:
        return Encoded(packer.pack(value), [])
    except (ValueError, OverflowError, TypeError):  # large ints, surrogates
        return None


def decode_plain(body: memoryview) -> object:
    """Decode a body as `decode` would, if it is one plain value; else `NOT_PLAIN`."""
    if body.nbytes == 1 and body[0] == 0xC0:
        return None
    value = _unpack(body)
    return value if type(value) in _PLAIN else NOT_PLAIN


def decode_plain_request(
    body: memoryview,
) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Decode a call as `decode` would, if its arguments are few and plain; else None.

    Also when it is no call at all: the long way says what is wrong.
    """
    request = _unpack(body)
    if type(request) is not list or len(request) != 3:
        return None
    name, args, kwargs = request
    if (
        type(name) is not str
        or type(args) is not list
        or type(kwargs) is not dict
        or not _PLAIN.issuperset(map(type, args))
        or not _PLAIN.issuperset(map(type, kwargs.values()))
    ):
        return None
    return name, args, kwargs


def _unpack(body: memoryview) -> object:
    nbytes = body.nbytes
    if not 0 < nbytes <= _MAX_NBYTES or 0xC4 <= body[0] <= 0xC9:
        return NOT_PLAIN
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse,
            max_str_len=nbytes,
            max_bin_len=0,
            max_array_len=nbytes,
            max_map_len=nbytes,
            max_ext_len=nbytes,
        )
    except Exception:  # noqa: BLE001 - whatever it is, the long way says it well
        return NOT_PLAIN


def _refuse(code: int, data: bytes) -> object:
    raise ValueError((code, data))
