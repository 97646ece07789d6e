"""Check what users say about their types, by looking for memory another way (EXT-7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from rpcfut._paths import type_name
from rpcfut._pickler_walk import pickled_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rpcfut._memory import DataRef

_log = logging.getLogger("rpcfut.extract")


def find_missed(
    part: object,
    has_extractor: Callable[[type], bool],
    blocks_of: Callable[[object], Iterable[DataRef]],
    is_known: Callable[[DataRef], bool],
) -> str | None:
    """Find memory that pickling an object meets and its extractor does not name.

    An object that cannot be pickled is not checked; a line in the debug log says so.

    Args:
        part: The object.
        has_extractor: Types that the pickler leaves to their extractor.
        blocks_of: Lists the memory of what the pickler found.
        is_known: Whether the extractor led to a block.

    Returns:
        What was missed, in words; None if nothing was.
    """
    try:
        found = pickled_parts(part, has_extractor)
    except Exception as error:  # noqa: BLE001 - whatever a user's __reduce__ raises
        _log.debug(
            "not audited: an object of type %s does not pickle (%s: %s)",
            type_name(type(part)),
            type(error).__name__,
            error,
        )
        return None
    for piece in found:
        for ref in blocks_of(piece):
            if not is_known(ref):
                return f"{_describe(piece)} on {ref.device}"
    return None


def _describe(piece: Any) -> str:
    name = type_name(type(piece))
    if isinstance(piece, torch.Tensor):
        return f"a {name} of shape {tuple(piece.shape)} and {piece.dtype}"
    shape = getattr(piece, "shape", None)
    return f"a {name}" + (f" of shape {tuple(shape)}" if shape is not None else "")
