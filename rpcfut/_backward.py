"""`backward`: autograd's backward pass on a pool thread, safe on any stream (STR-10).

Theory of operation. torch runs each node of the graph on the stream that was current
when the node was made, in the forward pass. Two hand-overs remain, and torch does both
for the thread that calls its engine: the nodes of the roots wait for that thread's
current streams, and at the end these wait for the streams of the leaves. Here that
thread is one of ours, so both go one step further:

    caller's streams --marks--> pass's streams --torch--> nodes' streams
                                                              |
    reader's streams <--marks-- pass's streams <--torch-- leaves' streams

The caller's streams are marked by the calling thread, before the hand-over; the
future's marks lie on the pass's streams, behind torch's waits. An implicit gradient is
made on the pass's streams, so the caller queues nothing.

The graph is that of the call: the roots are held as edges of the graph, so that
changing a root in place afterwards changes nothing here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch

from rpcfut._capture import refuse_capture
from rpcfut._devices import parse_device
from rpcfut._extract import extract_device
from rpcfut._handover import Made, hand_over
from rpcfut._pool import current_pool
from rpcfut._streams import seam_of, used_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rpcfut._future import Future

Tensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
Gradients: TypeAlias = "torch.Tensor | Sequence[torch.Tensor | None] | None"


@overload
def backward(
    roots: Tensors,
    grad_tensors: Gradients = None,
    inputs: None = None,
    retain_graph: bool = False,  # noqa: FBT001, FBT002 - as below
) -> Future[None]: ...


@overload
def backward(
    roots: Tensors,
    grad_tensors: Gradients,
    inputs: Tensors,
    retain_graph: bool = False,  # noqa: FBT001, FBT002 - as below
) -> Future[list[torch.Tensor | None]]: ...


@overload
def backward(
    roots: Tensors,
    grad_tensors: Gradients = None,
    *,
    inputs: Tensors,
    retain_graph: bool = False,
) -> Future[list[torch.Tensor | None]]: ...


def backward(
    roots: Tensors,
    grad_tensors: Gradients = None,
    inputs: Tensors | None = None,
    retain_graph: bool = False,  # noqa: FBT001, FBT002 - as torch has it
) -> Future[Any]:
    """Run ``torch.autograd.backward`` on a pool thread, while the caller goes on.

    See docs/backward.md for what runs when. Any thread. Does not block and queues
    nothing on the caller's streams: the pass runs on a pool thread, behind what is
    queued on the caller's current streams now. So a gradient that was made on one of
    these is safe; one that was made on another stream must be joined first.

    Until the future is done, nobody may change what the pass works with: parameters,
    saved activations, `grad_tensors`, ``.grad``. Afterwards whoever reads the future
    may, on any stream: ``backward(loss).then(lambda _: optimizer.step())`` is right.
    A hook of the graph must not wait for a future of this function.

    The future holds the gradients until it is dropped.

    Args:
        roots: The tensor or tensors to differentiate, as a list or tuple.
        grad_tensors: For each root the gradient to begin with: of its shape, on its
            device. None begins with 1; the root must have one element then.
        inputs: The leaves to accumulate gradients into; all others are left alone. By
            default, all that the roots depend on.
        retain_graph: Whether to keep what the graph has saved for another pass.

    Returns:
        A future that is done when the pass is, on the host. Its value is None; with
        `inputs` it is the list of their ``.grad``, None for one that no root depends
        on. What the pass raises is its error. Cancelling it does not stop the pass:
        the gradients are accumulated all the same, and nothing waits for them.

    Raises:
        TypeError: When a root, gradient or input is no tensor.
        ValueError: When there is no root or no input; when the gradients are not one
            for each root, of its shape, its device and its kind of number; when an
            input is no leaf.
        RuntimeError: When a root or an input does not require a gradient, when a root
            without a gradient is no real scalar, or inside a ``torch.func`` transform.
        ExtractionError: When a gradient is of a type that nobody knows.
        LookupError: When nothing is known about the streams of a root's device.
        CaptureError: When a current stream is being captured into a CUDA graph.
    """
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001 - as torch checks it
        raise RuntimeError("backward() inside a torch.func transform: use torch.func")
    tensors = _checked_roots(roots)
    gradients = _checked_gradients(tensors, grad_tensors)
    leaves = None if inputs is None else _checked_inputs(inputs)
    reads = extract_device(gradients)
    refuse_capture(used_devices(), "backward()")
    run = _Pass(tensors, gradients, leaves, retain_graph=retain_graph)
    return hand_over(run, reads, what="backward pass")


class _Pass:
    """One backward pass, to be run once, on a thread whose streams are ready."""

    def __init__(
        self,
        roots: tuple[torch.Tensor, ...],
        gradients: tuple[torch.Tensor | None, ...],
        inputs: tuple[torch.Tensor, ...] | None,
        *,
        retain_graph: bool,
    ) -> None:
        self._edges = tuple(map(torch.autograd.graph.get_gradient_edge, roots))
        self._gradients = gradients
        # For their shape and device; the root itself may be changed in place.
        self._likes = tuple(root.detach() for root in roots)
        self._inputs = inputs
        self._retain_graph = retain_graph

    def __call__(self) -> Made[Any]:
        """Run the pass; its memory is all gradients that it accumulated."""
        gradients = [
            torch.ones_like(like) if gradient is None else gradient
            for gradient, like in zip(self._gradients, self._likes, strict=True)
        ]
        # With devices the engine's threads do the work. They run hooks, and these may
        # wait for what needs a thread of the pool.
        pool = current_pool()
        with pool.blocking() if pool and used_devices() else nullcontext():
            torch.autograd.backward(
                self._edges,
                gradients,
                retain_graph=self._retain_graph,
                inputs=self._inputs,
            )
        if self._inputs is not None:
            value = [leaf.grad for leaf in self._inputs]
            return Made(value, value)
        if not used_devices():
            return Made(None, None)
        leaves = leaves_of(edge.node for edge in self._edges)
        return Made(None, [leaf.grad for leaf in leaves])


def leaves_of(nodes: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves of a graph, each once, found from nodes of it."""
    found = []
    # Holds the nodes: an object that stands for one is only the same while it lives.
    seen = dict.fromkeys(nodes)
    ahead = list(seen)
    while ahead:
        node = ahead.pop()
        following = node.next_functions
        if not following and type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        for one, _ in following:
            if one is not None and one not in seen:
                seen[one] = None
                ahead.append(one)
    return found


# ---- checking, before anything is done ----------------------------------------------


def _checked_roots(roots: Tensors) -> tuple[torch.Tensor, ...]:
    tensors = _tensors("roots", roots)
    for name, root in tensors:
        if not root.requires_grad:
            raise RuntimeError(
                f"{name} does not require a gradient: none of the tensors that it was "
                "computed from does, or it was computed under no_grad or detached"
            )
        if root.device.type not in {"cpu", "meta"}:
            seam_of(parse_device(root.device))
    return tuple(root for _, root in tensors)


def _checked_inputs(inputs: Tensors) -> tuple[torch.Tensor, ...]:
    tensors = _tensors("inputs", inputs)
    for name, leaf in tensors:
        if not leaf.requires_grad:
            raise RuntimeError(f"{name} does not require a gradient")
        if not leaf.is_leaf:
            # torch would accumulate, but have nobody wait for that stream.
            raise ValueError(
                f"{name} is no leaf but a result of {leaf.grad_fn!r}; give the leaves "
                "that it was computed from, or use its retain_grad() without inputs="
            )
    return tuple(leaf for _, leaf in tensors)


def _checked_gradients(
    roots: tuple[torch.Tensor, ...], gradients: Gradients
) -> tuple[torch.Tensor | None, ...]:
    if gradients is None:
        given: tuple[Any, ...] = (None,) * len(roots)
    elif isinstance(gradients, torch.Tensor):
        given = (gradients,)
    elif isinstance(gradients, (list, tuple)):
        given = tuple(gradients)
    else:
        raise TypeError(
            f"grad_tensors must be a tensor or a list or tuple, got {gradients!r}"
        )
    if len(given) != len(roots):
        raise ValueError(
            f"got {len(given)} gradients for {len(roots)} roots; give one each, or None"
        )
    for index, (root, gradient) in enumerate(zip(roots, given, strict=True)):
        if gradient is None:
            _check_scalar(f"roots[{index}]", root)
        elif isinstance(gradient, torch.Tensor):
            _check_gradient(index, root, gradient)
        else:
            raise TypeError(
                f"grad_tensors[{index}] must be a tensor or None, got {gradient!r}"
            )
    return given


def _check_scalar(name: str, root: torch.Tensor) -> None:
    if root.numel() != 1 or not root.is_floating_point():
        raise RuntimeError(
            f"{name} is no real scalar but of shape {tuple(root.shape)} and "
            f"{root.dtype}: give its gradient in grad_tensors, or reduce it to a scalar"
        )


def _check_gradient(index: int, root: torch.Tensor, gradient: torch.Tensor) -> None:
    facts: tuple[tuple[str, Callable[[torch.Tensor], object]], ...] = (
        ("shape", lambda tensor: tuple(tensor.shape)),
        ("device", lambda tensor: str(tensor.device)),
        ("kind of number", lambda t: "complex" if t.is_complex() else "real"),
    )
    for what, of in facts:
        if what == "device" and gradient.ndim == 0:
            continue  # torch copies a scalar to where it belongs
        got, wanted = of(gradient), of(root)
        if got != wanted:
            raise ValueError(
                f"grad_tensors[{index}] has {what} {got}, and roots[{index}] {wanted}"
            )


def _tensors(what: str, given: object) -> list[tuple[str, torch.Tensor]]:
    """The tensors among an argument, each with what messages call it."""
    if isinstance(given, torch.Tensor):
        return [(what, given)]
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} must be a tensor or a list or tuple, got {given!r}")
    if not given:
        raise ValueError(f"{what} is empty: give at least one tensor")
    named = [(f"{what}[{index}]", one) for index, one in enumerate(given)]
    for name, one in named:
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {one!r}")
    return named
