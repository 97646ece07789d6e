"""An `async def` on both ends: the callee awaits, and so does the caller.

Run it: ``python examples/async_await.py``
"""

import asyncio

import torch

import rpcfut


@rpcfut.expose
async def relay(x: torch.Tensor, hops: int) -> torch.Tensor:
    """Double a tensor `hops` times, each time by a call to this worker itself.

    While it awaits it takes no thread, so the depth is bounded by memory alone.
    """
    if hops == 0:
        return x
    return 2 * await rpcfut.rpc_async("solo", relay, (x, hops - 1))


async def use() -> None:
    """Await futures as anything else in asyncio."""
    one = await rpcfut.rpc_async("solo", relay, (torch.ones(2), 3))
    print("awaited", one.tolist())
    calls = [rpcfut.rpc_async("solo", relay, (torch.ones(1), n)) for n in range(4)]
    values = await asyncio.gather(*calls)
    print("gathered", [value.item() for value in values])


def main() -> None:
    """A group of one worker, which calls itself."""
    rpcfut.init_rpc("solo", 0, 1)
    asyncio.run(use())
    rpcfut.shutdown()


if __name__ == "__main__":
    main()
