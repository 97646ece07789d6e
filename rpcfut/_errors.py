"""Every error that rpcfut raises.

RpcError (a RuntimeError)
├── InvalidStateError          a future was completed twice, or read too early
├── PoolExhaustedError         too many threads are blocked in waits
├── DeadlockError              this wait could never end
├── StreamContextError         a stream context spans an await
├── ExtractionError            which device memory does this value hold? (EXT-3)
├── DeviceMismatchError        the value lies on a device that was not declared
├── CaptureError               a stream is being captured into a CUDA graph
├── CallRefusedError           your call was wrong; nothing was sent
│   ├── EncodeError            an argument cannot travel
│   ├── FunctionRefusedError   a lambda, a local function, a bound method
│   ├── UnknownWorkerError     no such worker
│   └── QueueFullError         too much waits for that worker already (RPC-8)
├── NotExposedError            they do not let you call this function
├── DecodeError                they (or you) got bytes that make no sense
├── RpcTimeoutError            the call's deadline passed
├── PeerLostError              they are gone
├── MessageLostError           a connection broke with your call or its answer on it
├── AuthenticationError        one of you has no secret, or another one
├── RemoteError                they raised something that only exists there
├── RendezvousError            the group did not come together
│   ├── MissingWorkersError    some ranks never came
│   ├── DuplicateNameError     two workers want one name
│   └── StoreLostError         where they meet is gone
└── LifecycleError             you called before init_rpc or after shutdown

Where Python has a type for the same thing, the class derives from it too, so that
``except TimeoutError`` or ``except LookupError`` work as expected.
"""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass


class RpcError(RuntimeError):
    """Base of all errors of this library."""


def _brief(error: BaseException) -> str:
    """Type and text on one line."""
    if isinstance(error, RemoteError):
        return f"{error.type_name}: {error.text}".split("\n")[0]
    return f"{type(error).__name__}: {error}".split("\n")[0]


def _copied(
    kind: type[RpcError], args: tuple[object, ...], attributes: dict[str, object]
) -> RpcError:
    """Make an error again whose constructor wants other arguments than its args."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error


class InvalidStateError(RpcError, concurrent.futures.InvalidStateError):
    """The future is not in a state that allows this operation (FUT-1)."""


class PoolExhaustedError(RpcError):
    """So many pool threads wait that another wait could never end (RPC-6)."""


class DeadlockError(RpcError):
    """A wait inside a callback for something that runs only after it (FUT-2)."""


class StreamContextError(RpcError):
    """A coroutine went on under other streams than it stopped with (STR-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from, for messages.

    Args:
        what: The value in words, as in ``"the return value of the then() callback"``.
        path_root: What its path starts with, as in ``"result"``.
        worker: Name of the worker that held the value, if it has one.
        call: The call that it belongs to, as in ``"m:step, called by worker 'w0'"``.
        is_sent: Whether it travels, so that nothing but a wire format helps.
    """

    what: str
    path_root: str = "value"
    worker: str | None = None
    call: str | None = None
    is_sent: bool = False


class ExtractionError(RpcError, TypeError):
    """Nobody has said which device memory a type holds (EXT-3).

    Raised at once, on the future that is waited for: the library never guesses,
    because a guess would be a silent race.

    Args:
        type_name: Module and qualified name of the unknown type.
        path: Where in the value it was found, as in ``result['layers'][3].cache``.
        what: The value in words.
        worker: Name of the worker where it happened, if it has one.
        call: The call that the value belongs to, if any.
        fix: The line or lines to add.
    """

    def __init__(
        self,
        *,
        type_name: str,
        path: str,
        what: str,
        worker: str | None = None,
        call: str | None = None,
        fix: str,
    ) -> None:
        lines = [f"cannot tell which device memory {type_name!r} holds"]
        lines.append(f"  found at: {path}, in {what}")
        if worker is not None:
            lines.append(f"  worker:   {worker}")
        if call is not None:
            lines.append(f"  call:     {call}")
        lines.append("  to fix:   " + fix.replace("\n", "\n            "))
        super().__init__("\n".join(lines))
        self.type_name = type_name
        self.path = path
        self.what = what
        self.worker = worker
        self.call = call
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return _copied, (type(self), self.args, vars(self))


class DeviceMismatchError(RpcError, ValueError):
    """The value lies on devices that were not declared (STR-7)."""


class CaptureError(RpcError):
    """The current stream is being captured into a CUDA graph (STR-14)."""


class CallRefusedError(RpcError):
    """The call was refused where it was made; nothing was sent."""


class EncodeError(CallRefusedError, TypeError):
    """A value cannot travel; the message names its path and the way out."""


class FunctionRefusedError(CallRefusedError, TypeError):
    """The function has no name that another process could find."""


class UnknownWorkerError(CallRefusedError, LookupError):
    """No worker of that name or rank; the message lists the known ones."""


class QueueFullError(CallRefusedError):
    """Too much is on its way to the worker, and this call may not wait (RPC-8)."""


class NotExposedError(RpcError, LookupError):
    """The callee does not expose this function; the message has the line to add."""


class DecodeError(RpcError, ValueError):
    """Bytes from a peer that do not decode."""


class RpcTimeoutError(RpcError, TimeoutError):
    """The deadline of a call passed before its answer came (RPC-2)."""


class PeerLostError(RpcError, ConnectionError):
    """The worker that should have answered is gone (RPC-7)."""


class AuthenticationError(RpcError, PermissionError):
    """This worker has no secret, or another one than its peers (RPC-10)."""


class MessageLostError(RpcError, ConnectionError):
    """A connection broke, and a call or its answer was on it (RPC-5).

    The callee is alive. The call may have run or not; nothing is sent again. Who knows
    that running it twice does no harm can call again.
    """


class RemoteError(RpcError):
    """The callee raised an exception of a type that is not rebuilt here (RPC-4).

    `str()` of it tells all that is known, on several lines.

    Args:
        type_name: Module and qualified name of the type over there.
        text: ``str()`` of the exception over there.
        remote_traceback: Its traceback as text, the frames of that worker.
        worker: Name of the worker that raised it.
        function: Name of the function that was called there.
        call_site: ``file:line`` where that call was made.

    Attributes:
        hint: What would bring it back as itself, if anything.
        exceptions: If it was a group of exceptions: its members, as they arrived.
    """

    def __init__(
        self,
        type_name: str,
        text: str,
        *,
        remote_traceback: str = "",
        worker: str = "",
        function: str = "",
        call_site: str = "",
    ) -> None:
        super().__init__(type_name, text)
        self.type_name = type_name
        self.text = text
        self.remote_traceback = remote_traceback
        self.worker = worker
        self.function = function
        self.call_site = call_site
        self.hint = ""
        self.exceptions: tuple[BaseException, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.type_name}: {self.text}" if self.text else self.type_name]
        if self.function or self.worker:
            lines.append(f"  raised in: {self.function} on worker {self.worker!r}")
        if self.call_site:
            lines.append(f"  called at: {self.call_site}")
        for number, member in enumerate(self.exceptions, 1):
            lines.append(f"  member {number}:  {_brief(member)}")
        if self.hint:
            lines.append(f"  to catch it as itself: {self.hint}")
        if self.remote_traceback:
            lines.append(f"remote traceback:\n{self.remote_traceback}".rstrip())
        return "\n".join(lines)


class RendezvousError(RpcError):
    """The group did not come together."""


class MissingWorkersError(RendezvousError, TimeoutError):
    """Some ranks did not come in time; the message names them."""


class DuplicateNameError(RendezvousError, ValueError):
    """Two workers want one name; the message names both ranks."""


class StoreLostError(RendezvousError, ConnectionError):
    """The store in which the workers meet failed, or its server is gone."""


class LifecycleError(RpcError):
    """Called before init_rpc, after shutdown, or twice."""


# Tracebacks name the classes as users import them.
for _kind in tuple(vars().values()):
    if isinstance(_kind, type) and issubclass(_kind, RpcError):
        _kind.__module__ = "rpcfut"
