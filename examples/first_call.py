"""Two workers and one call. Run it: ``torchrun --nproc-per-node 2 first_call.py``."""

import os

import torch

import rpcfut


@rpcfut.expose
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Runs on whichever worker is asked."""
    return x * factor


def main() -> None:
    """Both processes run this."""
    rank = int(os.environ["RANK"])  # torchrun says who we are ...
    rpcfut.init_rpc(f"worker{rank}")  # ... and where to meet
    if rank == 0:
        future = rpcfut.rpc_async("worker1", scale, args=(torch.ones(3), 2.0))
        print(future.then(lambda f: f.value().sum().item()).wait())
    rpcfut.shutdown()  # waits until everybody is done


if __name__ == "__main__":
    main()
