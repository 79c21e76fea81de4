"""What a gate costs on feature maps of ResNet-50, against a bare copy, a bare multiply, and the usual dropouts."""

import gc
from collections.abc import Callable
from statistics import fmean
from typing import Any

import timm
import torch
from timm.layers.drop import DropBlock2d
from torch import Tensor, nn

from chaosgate.bench.timing import interleaved, keep_memory
from chaosgate.gate import CorrelatedGaussian, DropBlock, Dropout, Gate, GaussianChaos, IIDGaussian
from chaosgate.inject import attach

SHAPES = {"L4": (64, 2048, 7, 7), "L3": (64, 1024, 14, 14), "L2": (64, 512, 28, 28)}


def run(threads: int = 1, repeats: int = 15) -> list[dict[str, Any]]:
    """Forward, and forward with backward, at the three late stages of ResNet-50 with batch 64.

    Times are means over all steps, so that whatever a gate does in some steps only would count too.
    """
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = [row for stage, shape in SHAPES.items() for row in measure_stage(stage, shape, repeats)]
        return [*rows, _share_of_a_step(min(repeats, 3))]
    finally:
        torch.set_num_threads(before)


def measure_stage(stage: str, shape: tuple[int, int, int, int], repeats: int) -> list[dict[str, Any]]:
    """Times of every contender on features of one shape."""
    gc.collect()
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    grad = torch.ones(shape)
    fixed = torch.rand(shape[0], 1, *shape[2:])
    contenders: dict[str, Callable[[Tensor], Tensor]] = {
        "copy": torch.clone,
        "broadcast multiply": lambda x: x * fixed,
        "GaussianChaos": GaussianChaos(log_std=1.0),
        "GaussianChaos attached": _attached(GaussianChaos(log_std=1.0)),
        "GaussianChaos wick": GaussianChaos(log_std=1.0, realization="wick"),
        "DropBlock": DropBlock(0.1, 3),
        "Dropout": Dropout(0.1),
        "IIDGaussian": IIDGaussian(0.1),
        "CorrelatedGaussian": CorrelatedGaussian(0.1),
        "nn.Dropout2d": nn.Dropout2d(0.1),
        "nn.Dropout": nn.Dropout(0.1),
        "timm DropBlock2d": DropBlock2d(0.1),
    }
    with torch.random.fork_rng():
        for gate in contenders.values():
            if isinstance(gate, Gate):
                gate.prepare((shape[2], shape[3]), h.device)
        with torch.no_grad():
            forward = interleaved({n: _forward(c, h) for n, c in contenders.items()}, repeats, fmean)
        both = interleaved({n: _forward_backward(c, h, grad) for n, c in contenders.items()}, repeats, fmean)
    return [
        {
            "stage": stage,
            "shape": "x".join(map(str, shape)),
            "what": name,
            "forward_ms": forward[name],
            "forward_over_multiply": forward[name] / forward["broadcast multiply"],
            "both_ms": both[name],
            "both_over_multiply": both[name] / both["broadcast multiply"],
            "extra_maps": _extra_maps(contenders[name], h),
        }
        for name in contenders
    ]


def _attached(gate: Gate) -> nn.Module:
    """A network that is nothing but the place of a gate: what hooks and their checks cost beyond calling the gate."""
    network = nn.Sequential(nn.Identity())
    attach(network, gate, "0", check=False, layout="NCHW")
    return network


def _extra_maps(call: Callable[[Tensor], Tensor], h: Tensor) -> float:
    """Memory beyond the input that is kept until backward, in feature maps: the output and what autograd saved."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        keep(call(h))
    kept.pop(h.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / h.untyped_storage().nbytes()


def _share_of_a_step(repeats: int) -> dict[str, Any]:
    """Forward and backward of the gate at L4, as a share of a training step of ResNet-50 (batch 16, 224 px)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("resnet50").train()
    images = torch.randn(16, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    h = torch.randn(16, 2048, 7, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    gate = GaussianChaos(log_std=1.0)
    backward = _forward_backward(gate, h, torch.ones_like(h))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(images).square().mean())
        optimizer.step()

    times = interleaved({"step": step, "gate": backward}, repeats)
    return {
        "stage": "L4",
        "shape": "16x2048x7x7",
        "what": "GaussianChaos in a ResNet-50 step",
        "forward_ms": None,
        "forward_over_multiply": None,
        "both_ms": times["gate"],
        "both_over_multiply": None,
        "extra_maps": None,
        "step_ms": times["step"],
        "share_of_step": times["gate"] / times["step"],
    }


def _forward(call: Callable[[Tensor], Tensor], h: Tensor) -> Callable[[], object]:
    return lambda: call(h)


def _forward_backward(call: Callable[[Tensor], Tensor], h: Tensor, grad: Tensor) -> Callable[[], object]:
    def step() -> None:
        h.grad = None
        torch.autograd.backward(call(h), grad)

    return step
