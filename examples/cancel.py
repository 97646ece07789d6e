"""Cancel a call: an `async def` stops by itself, any other function looks.

Run it: ``python examples/cancel.py``
"""

import asyncio
import threading

import rpcfut

STARTED = threading.Semaphore(0)
STOPPED = threading.Semaphore(0)


@rpcfut.expose
def count() -> int:
    """Work until nobody waits for the answer."""
    STARTED.release()
    steps = 0
    while not rpcfut.current_call().cancelled:
        steps += 1
    print("the function saw it after some steps:", steps > 0)
    STOPPED.release()
    return steps


@rpcfut.expose
async def dream() -> None:
    """Sleep until somebody cancels."""
    STARTED.release()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        print("the async def was cancelled")
        raise
    finally:
        STOPPED.release()


def main() -> None:
    """A group of one worker, which calls itself."""
    rpcfut.init_rpc("solo", 0, 1)
    for function in (count, dream):
        future = rpcfut.rpc_async("solo", function)
        child = future.then(lambda done: "cancelled" if done.cancelled() else "done")
        STARTED.acquire()
        future.cancel()
        STOPPED.acquire()
        print("here it is", child.wait())
    rpcfut.shutdown()


if __name__ == "__main__":
    main()
