"""Twenty lines as a user writes them: they check without a hint (B132)."""

import torch

import rpcfut


@rpcfut.expose
def gradient(weights: torch.Tensor, seed: int) -> torch.Tensor:
    """One worker's part."""
    torch.manual_seed(seed)
    return weights * torch.rand_like(weights)


def train_step(weights: torch.Tensor, workers: list[str]) -> tuple[float, list[float]]:
    """Ask all workers, add what they answer, and look at the first answers early."""
    calls = [
        rpcfut.rpc_async(worker, gradient, (weights, seed))
        for seed, worker in enumerate(workers)
    ]
    norms = [call.then(lambda f: f.value().norm()) for call in calls]
    total = rpcfut.collect_all(calls).then(lambda f: [m.value() for m in f.value()])
    for call in rpcfut.as_completed(calls, timeout=10):
        weights -= 0.1 * call.value()
    largest = max(float(gradient.abs().max()) for gradient in total.wait(timeout=10))
    return largest, [float(norm) for norm in rpcfut.wait_all(norms)]
