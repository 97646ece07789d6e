"""Train a digit classifier with a parameter server and three workers.

Four processes on real data (scikit-learn's bundled digits). Each round the server sends
its weights to all workers by `rpc_async`; a worker computes gradients and returns them
in a class of this file, `GradientBatch`; the server applies each answer in a `then`
callback as it comes in. With a GPU everything lies on it, without one on the host; the
code is the same.

Run it: ``python examples/quickstart.py``
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

import rpcfut

SERVER = "server"
WORKERS = ["worker1", "worker2", "worker3"]
ROUNDS = 300
BATCH = 96
LEARNING_RATE = 0.3
WANTED_ACCURACY = 0.95

Weights = dict[str, Tensor]


@rpcfut.register_type  # how it travels, and where its tensors are
@dataclass
class GradientBatch:
    """Gradients of one mini-batch, as a worker returns them."""

    gradients: Weights
    loss: float
    examples: int


class Diary:
    """A class that nobody registered: see the end of `serve`."""

    def __init__(self, entry: Tensor) -> None:
        self.entry = entry


@functools.cache
def digits(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels: for training, then for the test."""
    data = load_digits()
    images = torch.tensor(data.data / 16.0, dtype=torch.float32, device=device)
    labels = torch.tensor(data.target, dtype=torch.int64, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    order = order.to(device)
    test, train = order[:360], order[360:]
    return images[train], labels[train], images[test], labels[test]


def predict(weights: Weights, images: Tensor) -> Tensor:
    """Class scores, shape (batch, 10), of images of shape (batch, 64)."""
    hidden = torch.relu(images @ weights["w1"] + weights["b1"])
    return hidden @ weights["w2"] + weights["b2"]


@rpcfut.expose
def compute_gradients(weights: Weights, seed: int) -> GradientBatch:
    """Gradients of a random mini-batch. Runs on a worker."""
    images, labels, _, _ = digits(str(weights["w1"].device))
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randint(len(labels), (BATCH,), generator=generator)
    batch = batch.to(images.device)
    leaves = {name: w.requires_grad_() for name, w in weights.items()}
    loss = cross_entropy(predict(leaves, images[batch]), labels[batch])
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return GradientBatch(dict(zip(leaves, gradients, strict=True)), loss.item(), BATCH)


@rpcfut.expose
def write_diary() -> Diary:
    """Return something that nobody has said how to send."""
    return Diary(torch.zeros(3))


def new_weights(device: str) -> Weights:
    """Random weights of a network with one hidden layer."""
    generator = torch.Generator().manual_seed(1)
    return {
        "w1": (torch.randn(64, 64, generator=generator) / 8).to(device),
        "b1": torch.zeros(64, device=device),
        "w2": (torch.randn(64, 10, generator=generator) / 8).to(device),
        "b2": torch.zeros(10, device=device),
    }


def train(weights: Weights, progress: Progress) -> float:
    """Train in place, round by round; returns calls per second."""
    device = str(weights["w1"].device)
    # Callbacks that were given one stream run one at a time, in order. Without it two
    # of them would read, change and write the weights at once, and updates get lost.
    update_stream = rpcfut.stream(device)

    def apply(done: rpcfut.Future[GradientBatch]) -> float:
        batch = done.value()
        for name, gradient in batch.gradients.items():
            weights[name].sub_(LEARNING_RATE * gradient)
        return batch.loss

    task = progress.add_task("training", total=ROUNDS, loss="")
    start = time.perf_counter()
    for number in range(ROUNDS):
        # What is sent must not change while answers are applied.
        snapshot = {name: w.clone() for name, w in weights.items()}
        losses = [
            rpcfut.rpc_async(
                worker, compute_gradients, args=(snapshot, number * len(WORKERS) + i)
            ).then(apply, stream=update_stream)
            for i, worker in enumerate(WORKERS)
        ]
        loss = sum(f.wait() for f in losses) / len(losses)
        progress.update(task, advance=1, loss=f"loss {loss:.3f}")
    return ROUNDS * len(WORKERS) / (time.perf_counter() - start)


def serve(rendezvous: str) -> None:
    """Be the server: train, test, and meet an error on purpose."""
    console = Console()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    rpcfut.init_rpc(SERVER, 0, 1 + len(WORKERS), init_method=rendezvous)
    weights = new_weights(device)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        rate = train(weights, progress)
    _, _, images, labels = digits(device)
    right = predict(weights, images).argmax(dim=1) == labels
    accuracy = right.float().mean().item()
    console.print(
        f"{device}: test accuracy {accuracy:.1%} after {ROUNDS} rounds with "
        f"{len(WORKERS)} workers, {rate:.0f} calls/s"
    )

    console.print("\nAnd now a call that returns a class that nobody registered:")
    try:
        rpcfut.rpc_sync(WORKERS[0], write_diary)
    except rpcfut.ExtractionError as error:
        console.print(f"ExtractionError: {error}", markup=False, soft_wrap=True)
    else:
        sys.exit("an unregistered class came through without an error")

    rpcfut.shutdown()
    if accuracy <= WANTED_ACCURACY:
        sys.exit(f"accuracy {accuracy:.1%} is not above {WANTED_ACCURACY:.0%}")


def work(rank: int, rendezvous: str) -> None:
    """Be a worker: join, serve calls until everybody is ready to leave."""
    torch.set_num_threads(1)
    rpcfut.init_rpc(WORKERS[rank - 1], rank, 1 + len(WORKERS), init_method=rendezvous)
    rpcfut.shutdown()


def main() -> None:
    """Start the workers as processes of their own and be the server."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder, 'rendezvous')}"
        workers = [
            spawn.Process(target=work, args=(rank, rendezvous), daemon=True)
            for rank in range(1, 1 + len(WORKERS))
        ]
        for worker in workers:
            worker.start()
        serve(rendezvous)
        for worker in workers:
            worker.join(timeout=30)


if __name__ == "__main__":
    main()
