"""One call to many workers, and their answers as they come in.

The arguments are encoded once, however many workers get them.

Run it: ``torchrun --nproc-per-node 4 examples/fan_out.py``
"""

import os

import torch

import rpcfut


@rpcfut.expose
def score(weights: torch.Tensor) -> tuple[str, float]:
    """Runs on every worker that is asked."""
    me = rpcfut.get_worker_info()
    return me.name, weights.sum().item() * me.rank


def main() -> None:
    """All processes run this; the first one asks the others."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpcfut.init_rpc(f"worker{rank}")
    if rank == 0:
        others = [f"worker{other}" for other in range(1, size)]
        futures = rpcfut.rpc_async(others, score, (torch.ones(5),))
        for future in rpcfut.as_completed(futures):
            print(*future.value())
        best = max(rpcfut.wait_all(futures), key=lambda answer: answer[1])
        print("best:", *best)
    rpcfut.shutdown()


if __name__ == "__main__":
    main()
