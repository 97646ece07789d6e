"""What a future is completed with: an outcome, its marks and the memory it holds."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcfut._errors import DeviceMismatchError, ExtractionError
from rpcfut._extract import extract_device
from rpcfut._outcome import Outcome, Value, failure_of
from rpcfut._streams import record_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut._devices import Device
    from rpcfut._errors import Origin
    from rpcfut._extract import DataRef
    from rpcfut._streams import Mark


class Completion(NamedTuple):
    """An outcome with the marks that it depends on and the memory it holds."""

    outcome: Outcome[Any]
    marks: tuple[Mark, ...] = ()
    refs: Sequence[DataRef] = ()


def completion_of(
    value: Any, devices: frozenset[Device] | None, origin: Callable[[], Origin]
) -> Completion:
    """Find the memory of a value and record its marks on the calling thread (STR-1).

    Args:
        value: The value.
        devices: The declared devices, if any (STR-7).
        origin: Makes the words for an error message; only called for one.

    Returns:
        The completion; a failed one if the value holds a type that nobody knows (EXT-3)
        or lies on a device that was not declared.
    """
    refs = _find_refs(value, origin)
    if isinstance(refs, ExtractionError):
        return Completion(failure_of(refs))
    if not refs:
        return Completion(Value(value))
    if devices is not None:
        used = {ref.device for ref in refs if ref.device.type != "cpu"}
        if not used <= devices:
            return Completion(failure_of(_mismatch(used, devices, origin())))
    return Completion(Value(value), record_marks(refs), refs)


def _find_refs(
    value: Any, origin: Callable[[], Origin]
) -> list[DataRef] | ExtractionError:
    with suppress(ExtractionError):
        return extract_device(value)
    try:  # once more, with words for the message
        return extract_device(value, origin=origin())
    except ExtractionError as error:
        # Where our walk stood says nothing; the path in the message does.
        return error.with_traceback(None)


def _mismatch(
    used: set[Device], declared: frozenset[Device], origin: Origin
) -> DeviceMismatchError:
    return DeviceMismatchError(
        f"{origin.what} lies on {_names(used)}, but the future was made for "
        f"{_names(declared)}; declare all its devices, or none: without any they are "
        "taken from the value"
    )


def _names(devices: frozenset[Device] | set[Device]) -> str:
    return ", ".join(map(str, sorted(devices))) or "no device"
