"""Runs what a peer calls, and sees that it is answered.

Every call ends in exactly one answer. Whatever goes wrong after the header was read, in
the arguments, in the function, in its result or in sending that, becomes an error
reply, and the worker lives (RPC-3, RPC-4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcfut._answer import Answer
from rpcfut._codec import decode
from rpcfut._errors import DecodeError
from rpcfut._future import Future
from rpcfut._future_core import add_hook
from rpcfut._own_streams import own_streams, place_in
from rpcfut._wire_codes import REQUEST_DEPTH

if TYPE_CHECKING:
    from rpcfut._exposed import ExposedTable
    from rpcfut._streams import Scope
    from rpcfut._watcher import DeviceWatcher
    from rpcfut_transport import Endpoint, IncomingCall


class Dispatcher:
    """Serves the calls of peers to one agent. `serve` runs on the agent's pool threads.

    Args:
        worker: The agent's name.
        endpoint: Takes the answers.
        exposed: What peers may call.
        watcher: Sends answers that wait for a device.
    """

    def __init__(
        self,
        worker: str,
        endpoint: Endpoint,
        exposed: ExposedTable,
        watcher: DeviceWatcher,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._exposed = exposed
        self._watcher = watcher

    def serve(self, call: IncomingCall, caller: str) -> None:
        """Run one call and see to its answer. Never raises.

        Args:
            call: The call, its body still encoded.
            caller: Name of the worker that sent it.
        """
        answer = Answer(self._worker, self._endpoint, self._watcher, call, caller)
        try:
            with own_streams() as scope:
                self._run(call, answer, scope)
        except BaseException as error:  # noqa: BLE001 - travels to the caller
            answer.fail(error)

    def _run(self, call: IncomingCall, answer: Answer, scope: Scope) -> None:
        request = decode(
            call.body,
            call.buffers,
            place=place_in(scope),
            outer_depth=REQUEST_DEPTH,
        )
        match request:
            case [str() as name, list() as args, dict() as kwargs]:
                pass
            case _:
                raise DecodeError("a call must be [name, args, kwargs]")
        answer.function = name
        function = self._exposed.find(name, self._worker)
        result = function(*args, **kwargs)
        if isinstance(result, Future):
            add_hook(result, lambda _future, _where: answer.follow(result))
        else:
            answer.succeed(result)
