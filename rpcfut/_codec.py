"""Values <-> a msgpack body and buffers (RPC-9, RPC-10).

Theory of operation. *Encoding* lowers a value to what msgpack writes by itself, by the
table in `_wire_codes`, and packs that in one pass; lists and dicts of plain values are
packed as they are. The containers that are being lowered stand in a list: it bounds
the depth, finds cycles, and becomes the path in a message when something is refused.
*Decoding* unpacks in one pass and then lifts the marked lists, with the same bound.

Bulk (elements of tensors and arrays, long bytes) never goes through msgpack: the body
holds the index of a buffer. Nothing is imported, and no type is looked up by a name
from the wire but in the registry. What bounds the memory that a hostile body can take
is written in `_wire_weights`, and beside each constant in `_wire_codes`.

Dicts are msgpack maps only when all keys are text. msgpack could write other keys, but
reading them back is refused by default for good reason (a list as a key), and a map
has no room for keys that are compounds; a list of pairs has one rule for all.
"""

from __future__ import annotations

from rpcfut._decode import decode, peek_name
from rpcfut._encode import Encoded, encode
from rpcfut._plain_codec import (
    NOT_PLAIN,
    decode_plain,
    decode_plain_request,
    encode_plain,
    encode_plain_request,
)
from rpcfut._tensor_reader import Place

__all__ = [
    "NOT_PLAIN",
    "Encoded",
    "Place",
    "decode",
    "decode_plain",
    "decode_plain_request",
    "encode",
    "encode_plain",
    "encode_plain_request",
    "peek_name",
]
