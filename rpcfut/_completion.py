"""What a future is completed with: an outcome, its marks and the memory it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rpcfut._errors import DeviceMismatchError, ExtractionError
from rpcfut._extract import extract_by, extract_device
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


_NEW: Final[Any] = tuple.__new__  # Completion() takes twice as long


def completion_of(
    value: Any,
    devices: frozenset[Device] | None,
    origin: Callable[[], Origin],
    record: Callable[[Sequence[DataRef]], tuple[Mark, ...]] = record_marks,
    extractor: Callable[[Any], object] | None = None,
) -> Completion:
    """Find the memory of a value and record its marks on the calling thread (STR-1).

    Args:
        value: The value.
        devices: The declared devices, if any (STR-7).
        origin: Makes the words for an error message; only called for one.
        record: Makes the marks, given the value's memory; also called for a value that
            is refused, without any.
        extractor: Says what the value holds, in place of what is registered (EXT-2).

    Returns:
        The completion; a failed one if the value holds a type that nobody knows (EXT-3)
        or lies on a device that was not declared.
    """
    try:
        if extractor is None:
            refs = extract_device(value)
        else:
            refs = extract_by(extractor, value)
    except ExtractionError:
        refusal = _refusal(value, extractor, origin())
        return Completion(failure_of(refusal), record(()))
    if refs and devices is not None:
        used = {ref.device for ref in refs if ref.device.type != "cpu"}
        if not used <= devices:
            error = _mismatch(used, devices, origin())
            return Completion(failure_of(error), record(()))
    made: Completion = _NEW(Completion, (Value(value), record(refs), refs))
    return made


def _refusal(
    value: Any, extractor: Callable[[Any], object] | None, origin: Origin
) -> ExtractionError:
    """The error for a value that was refused, with words for where it came from."""
    try:
        if extractor is None:
            extract_device(value, origin=origin)
        else:
            extract_by(extractor, value, origin=origin)
    except ExtractionError as error:
        # Where our walk stood says nothing; the path in the message does.
        error.__context__ = None
        return error.with_traceback(None)
    raise AssertionError(f"{origin.what} was refused, and then was not")


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
