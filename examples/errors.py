"""What can go wrong with a call, and what it looks like here.

Run it: ``python examples/errors.py``
"""

import threading

import rpcfut


class OutOfTokensError(Exception):
    """An exception that only the callee knows."""


@rpcfut.expose
def divide(a: float, b: float) -> float:
    """Fail with a built-in exception if asked to."""
    return a / b


@rpcfut.expose
def generate() -> str:
    """Fail with an exception of the callee's own."""
    raise OutOfTokensError("after 17 tokens")


@rpcfut.expose
def sleep(seconds: float) -> None:
    """Take its time."""
    threading.Event().wait(seconds)


def main() -> None:
    """A group of one worker, which calls itself."""
    rpcfut.init_rpc("solo", 0, 1)

    try:  # built-in exceptions come back as what they are
        rpcfut.rpc_sync("solo", divide, (1.0, 0.0))
    except ZeroDivisionError as error:
        print("ZeroDivisionError:", error)

    try:  # others with their name and text; the traceback is in str(error)
        rpcfut.rpc_sync("solo", generate)
    except rpcfut.RemoteError as error:
        print("RemoteError:", error.type_name)

    try:
        rpcfut.rpc_sync("solo", sleep, (1.0,), timeout=0.1)
    except rpcfut.RpcTimeoutError as error:
        print("RpcTimeoutError:", str(error).splitlines()[0])

    failed = rpcfut.rpc_async("solo", divide, (1.0, 0.0))
    saved = failed.then(lambda done: 0.0 if done.exception() else done.value())
    print("a callback may look at the error and go on:", saved.wait())
    rpcfut.shutdown()


if __name__ == "__main__":
    main()
