"""Exceptions <-> bytes (RPC-3, RPC-4).

Theory of operation: `encode_error` must not fail, whatever the exception does. So each
thing that is asked of it is asked through `ask`, what Python itself keeps in it is
read past its class (`own`), and each text is cut and cleaned. A node may take its
share of `_NODES_NBYTES` and no more, so that the body always decodes. The exceptions
of a chain become a list of nodes that refer to later ones by index, so that there are
no cycles on the wire.

Each node says its type, text and traceback in words; beside them may stand what makes
it again: its *state*, if the type is in the closed table of `_error_types`, or its
*value*, if the type was registered. If that is missing, or fails here, the words become
a `RemoteError`. One that is passed on by a worker between keeps the words of the first.
"""

from __future__ import annotations

from rpcfut._error_decode import decode_error
from rpcfut._error_encode import FALLBACK_BODY, encode_error

__all__ = ["FALLBACK_BODY", "decode_error", "encode_error"]
