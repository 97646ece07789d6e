"""A value made on a side stream, and a callback that is safe to read it.

Runs on CUDA if there is a GPU; else on the simulated device, which finds races.

Run it: ``python examples/side_stream.py``
"""

import torch

import rpcfut
from rpcfut.testing import SimArray, simulate


def on_cuda() -> float:
    """The future, not the reader, knows which stream the value comes from."""
    made: rpcfut.Future[torch.Tensor] = rpcfut.Future()
    doubled = made.then(lambda done: 2 * done.value())  # on a stream of its own
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        made.set_result(torch.ones(1 << 20, device="cuda:0").cumsum(0))
    return float(doubled.wait()[-1])  # this stream waits, not the host


def on_the_simulated_device() -> float:
    """The same; a missing wait would be a `RaceError`, every time."""
    with simulate(1, seed=0) as sim:
        made: rpcfut.Future[SimArray] = rpcfut.Future()
        doubled = made.then(lambda done: done.value() * 2.0)
        with sim.stream(0):
            made.set_result(sim.array([1.0]).add_(1.0))
        return doubled.wait().tolist()[0]


def main() -> None:
    """Say where it ran and what came out."""
    if torch.cuda.is_available():
        print("cuda:0", on_cuda())
    else:
        print("no GPU, so on the simulated device:", on_the_simulated_device())


if __name__ == "__main__":
    main()
