"""Workers that torchrun starts: who is who, where to meet, and leaving together.

torchrun tells each process by its environment which rank it is, how many there are, and
where they meet; `init_rpc` reads that. If one crashes, torchrun starts all of them
again (``--max-restarts``), and they meet anew.

Run it: ``torchrun --standalone --nproc-per-node 2 examples/torchrun.py``
"""

import os

import torch

import rpcfut


@rpcfut.expose
def norm(x: torch.Tensor) -> float:
    """Runs on whichever worker is asked."""
    return float(x.norm())


def main() -> None:
    """All processes run this."""
    rpcfut.init_rpc(f"worker{os.environ['RANK']}")
    me = rpcfut.get_worker_info()
    everybody = rpcfut.get_worker_infos()
    neighbour = everybody[(me.rank + 1) % len(everybody)]
    value = rpcfut.rpc_sync(neighbour, norm, args=(torch.full((4,), me.rank + 1.0),))
    print(f"{me.name} of {len(everybody)} asked {neighbour.name}: {value}", flush=True)
    rpcfut.shutdown()  # serves until all are done


if __name__ == "__main__":
    main()
