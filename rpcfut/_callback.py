"""One registered callback: what to call, on which streams, and how to call it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rpcfut import _callbacks
from rpcfut._call_info import CallInfo, Site, function_name
from rpcfut._capture import refuse_capture
from rpcfut._completion import Completion, completion_of
from rpcfut._devices import CPU, Device, parse_devices
from rpcfut._errors import Origin
from rpcfut._host_stream import Streams, streams_by_device
from rpcfut._outcome import Outcome, failure_of
from rpcfut._serving import call_in_service, serving
from rpcfut._streams import (
    current_device,
    enter_scope,
    record_current,
    record_in_use,
    used_devices,
)
from rpcfut._type_registry import current_types, types_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from types import CodeType

    import torch

    from rpcfut._extract import DataRef
    from rpcfut._lanes import Ticket
    from rpcfut._streams import Mark, Scope

_log = logging.getLogger("rpcfut.future")


class Callback:
    """A callback and the place that registered it.

    Args:
        function: Called with the done parent.
        child: The future to complete with what it returns; None if nobody wants that.
        place: The code and the instruction that registered it.

    Raises:
        TypeError: When the function is not callable.
    """

    __slots__ = (
        "call",
        "child",
        "devices",
        "extractor",
        "function",
        "here",
        "marks",
        "place",
        "streams",
        "ticket",
        "types",
    )

    def __init__(
        self, function: Callable[[Any], Any], child: Any, place: tuple[CodeType, int]
    ) -> None:
        if not callable(function):
            raise TypeError(f"a callback must be callable, got {function!r}")
        self.function = function
        self.child = child
        self.place = place
        self.types = current_types()
        self.call = call_in_service()
        self.extractor: Callable[[Any], object] | None = None
        self.streams: Mapping[Device, Any] | None = None
        self.devices: frozenset[Device] = frozenset()
        self.marks: tuple[Mark, ...] = ()
        self.here: Device | None = None
        self.ticket: Ticket | None = None

    def ask_for(
        self,
        stream: Streams,
        devices: Iterable[str | int | torch.device] | None,
        extractor: Callable[[Any], object] | None,
    ) -> None:
        """Set what only some callbacks are registered with.

        Args:
            stream: The stream or streams to run on instead of pool streams, if any.
            devices: Further devices in play.
            extractor: Says what the returned value holds, in place of the registry.

        Raises:
            TypeError: When the extractor is not callable or `stream` is no stream.
            ValueError: When a device has no index, or two streams are on one device.
        """
        if extractor is not None and not callable(extractor):
            raise TypeError(f"an extractor must be callable, got {extractor!r}")
        self.extractor = extractor
        if stream is not None:
            self.streams = streams_by_device(stream)
        if devices is not None:
            self.devices = parse_devices(devices) - {CPU}

    def note_here(self, used: Sequence[Device], *, after_here: bool = True) -> None:
        """Note the calling thread's current streams and device.

        Args:
            used: The used devices, at least one.
            after_here: Whether to run after what is queued on these streams now.

        Raises:
            CaptureError: When one of the streams is being captured.
        """
        refuse_capture(used, "then()")
        if after_here:
            self.marks = record_current(used)
        self.here = current_device()

    @property
    def site(self) -> Site:
        """Where it was registered."""
        return Site(*self.place)

    @property
    def lane_keys(self) -> Sequence[Hashable]:
        """The streams that this callback may not share with another just now."""
        return [(d, _stream_key(s)) for d, s in (self.streams or {}).items()]

    def invoke(
        self,
        parent: Any,
        outcome: Outcome[Any],
        marks: Sequence[Mark],
        refs: Sequence[DataRef],
    ) -> Completion:
        """Call the function on its streams and say what the child completes with.

        Args:
            parent: The done parent, passed to the function.
            outcome: How the parent ended; its error keeps its traceback.
            marks: The parent's marks.
            refs: The parent's memory.
        """
        if self.types is not current_types():
            with types_in_use(self.types):
                return self.invoke(parent, outcome, marks, refs)
        if self.call is not call_in_service():
            with serving(self.call):
                return self.invoke(parent, outcome, marks, refs)
        asked = marks or self.marks or refs or self.streams or self.devices
        if not asked and not used_devices():
            return self._call(parent, outcome, record_in_use)
        scope = self._enter(marks, refs)
        try:
            return self._call(parent, outcome, scope.record)
        finally:
            scope.leave()

    def _call(
        self,
        parent: Any,
        outcome: Outcome[Any],
        record: Callable[[Sequence[DataRef]], tuple[Mark, ...]],
    ) -> Completion:
        function = self.function
        try:
            value = function(parent)
        except BaseException as error:  # noqa: BLE001 - stored in the child, or logged
            if not _callbacks.note_interrupt(error) and self.child is None:
                self._log_error(error)
            return Completion(failure_of(error, outcome), record(()))
        if self.child is None:
            return Completion(outcome)
        # A returned future has found out for itself what its value holds.
        extractor = None if isinstance(value, type(self.child)) else self.extractor
        return completion_of(value, None, self._origin, record, extractor)

    def _enter(self, marks: Sequence[Mark], refs: Sequence[DataRef]) -> Scope:
        streams = self.streams
        if streams is not None:
            streams = {d: s for d, s in streams.items() if d != CPU}
        return enter_scope(
            _callbacks.runtime().streams.lease,
            marks=(*marks, *self.marks),
            refs=refs,
            current=self.here,
            devices=self.devices,
            streams=streams,
        )

    def _origin(self) -> Origin:
        about: CallInfo | None = self.child._about  # noqa: SLF001 - its parent's
        return Origin(
            what=f"the return value of the callback {function_name(self.function)}() "
            f"registered at {self.site}",
            path_root="result",
            worker=about.worker if about is not None else None,
            call=str(about) if about is not None else None,
        )

    def _log_error(self, error: BaseException) -> None:
        _log.error(
            "the done callback %s(), registered at %s, raised; later ones still run",
            function_name(self.function),
            self.site,
            exc_info=error,
        )


def _stream_key(stream: Any) -> Hashable:
    """What makes two stream objects the same stream."""
    key: Hashable = getattr(stream, "stream_id", None)
    return key if key is not None else stream
