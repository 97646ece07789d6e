"""A class of your own as an argument and as a result.

One registration says how it travels and where its tensors are, so that futures know
what to wait for.

Run it: ``python examples/custom_type.py``
"""

from dataclasses import dataclass

import torch

import rpcfut


@rpcfut.register_type  # a dataclass needs no more than this
@dataclass
class Batch:
    """Tokens and their lengths."""

    tokens: torch.Tensor
    lengths: list[int]


class Cache:
    """Not a dataclass, so somebody has to say what it is made of."""

    def __init__(self, blocks: list[torch.Tensor]) -> None:
        self.blocks = blocks


rpcfut.register_type(Cache, lambda cache: cache.blocks, Cache)


class Forgotten:
    """Nobody registered this one."""


@rpcfut.expose
def fill(batch: Batch) -> Cache:
    """Return one block for each sequence."""
    return Cache([batch.tokens[:length] for length in batch.lengths])


def main() -> None:
    """A group of one worker, which calls itself."""
    rpcfut.init_rpc("solo", 0, 1)
    cache = rpcfut.rpc_sync("solo", fill, (Batch(torch.arange(8), [2, 3]),))
    print(type(cache).__name__, [block.tolist() for block in cache.blocks])
    try:
        rpcfut.rpc_sync("solo", fill, (Forgotten(),))
    except rpcfut.ExtractionError as error:
        print(error)
    rpcfut.shutdown()


if __name__ == "__main__":
    main()
