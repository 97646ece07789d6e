"""Keys and elements whose hashes are equal: how much work they may make (RPC-10).

The hash of a number is the number modulo 2**61 - 1, for everybody to compute, and those
of tuples, ranges and frozensets follow from their elements. Keys that a stranger chose
to have one hash are compared each with each: a body of 64 MB would take days. So the
pairs are counted before a set or dict is made. Sender and receiver count alike.

Keys with different hashes that meet in the table are not looked for: whoever wants to
find some has to search for each, and has easier ways to send a call that takes long.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

# A few meet by chance: -1 and -2 do, and tuples of them.
_FREE_COUNT: Final = 64
_PAIRS_PER_KEY: Final = 64


def require_scattered(keys: Collection[Hashable]) -> None:
    """Refuse keys of which too many have one hash.

    Raises:
        TypeError: When that is so, or one of them has no hash.
    """
    if len(keys) <= _FREE_COUNT:
        return
    if len(keys) - len(set(map(hash, keys))) < _FREE_COUNT:
        return
    counts = Counter(map(hash, keys)).values()
    if sum(count * count for count in counts) > 2 * _PAIRS_PER_KEY * len(keys):
        raise TypeError(
            f"has {max(counts)} keys or elements with one hash, which the receiver "
            "would compare each with each; send a list of them"
        )
