"""What a gate costs on feature maps of ResNet-50, against a bare copy, a bare multiply, and the
usual dropouts.
"""

import gc
import math
from collections.abc import Callable
from statistics import fmean, median, stdev
from typing import Any

import timm
import torch
from timm.layers.drop import DropBlock2d
from torch import Tensor, nn

from benchmarks.timing import interleaved, keep_memory, rounds
from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    Gate,
    GaussianChaos,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
)
from chaosgate.inject import attach

SHAPES = {"L4": (64, 2048, 7, 7), "L3": (64, 1024, 14, 14), "L2": (64, 512, 28, 28)}


def run(threads: int = 1, repeats: int = 15) -> list[dict[str, Any]]:
    """Forward, and forward with backward, at the three late stages of ResNet-50 with batch 64.

    Times are means over all steps, so that whatever a gate does in some steps only would count too;
    ``both_error`` is the standard error of ``both_over_multiply``. What hooks and their checks add
    is too little to be seen beside these maps, so they are timed on one channel as well: the median
    of attached minus not attached.
    """
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = [
            row for stage, shape in SHAPES.items() for row in measure_stage(stage, shape, repeats)
        ]
        return [*rows, *_share_of_a_step(min(repeats, 3))]
    finally:
        torch.set_num_threads(before)


def measure_stage(
    stage: str, shape: tuple[int, int, int, int], repeats: int
) -> list[dict[str, Any]]:
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
        "IIDLogNormal": IIDLogNormal(1.0),
        "SignedCorrelated": SignedCorrelated(0.5),
        "nn.Dropout2d": nn.Dropout2d(0.1),
        "nn.Dropout": nn.Dropout(0.1),
        "timm DropBlock2d": DropBlock2d(0.1),
    }
    with torch.random.fork_rng():
        for gate in contenders.values():
            if isinstance(gate, Gate):
                gate.prepare((shape[2], shape[3]), h.device)
        with torch.no_grad():
            forward = _means(rounds({n: _forward(c, h) for n, c in contenders.items()}, repeats))
        rounds_of = rounds(
            {n: _forward_backward(c, h, grad) for n, c in contenders.items()}, repeats
        )
        both = _means(rounds_of)
    return [
        {
            "stage": stage,
            "shape": "x".join(map(str, shape)),
            "what": name,
            "forward_ms": forward[name],
            "forward_over_multiply": forward[name] / forward["broadcast multiply"],
            "both_ms": both[name],
            "both_over_multiply": both[name] / both["broadcast multiply"],
            "both_error": _ratio_error(rounds_of[name], rounds_of["broadcast multiply"]),
            "extra_maps": _extra_maps(contenders[name], h),
        }
        for name in contenders
    ]


def _means(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: fmean(values) for name, values in times.items()}


def _ratio_error(times: list[float], unit: list[float]) -> float:
    """Standard error of the ratio of two means, from what is left of each round after the ratio is
    taken out.
    """
    ratio = fmean(times) / fmean(unit)
    rest = [time - ratio * one for time, one in zip(times, unit, strict=True)]
    return stdev(rest) / len(rest) ** 0.5 / fmean(unit) if len(rest) > 1 else math.nan


def _attached(gate: Gate) -> nn.Module:
    """A network that is nothing but the place of a gate: what hooks and their checks cost beyond
    calling the gate.
    """
    network = nn.Sequential(nn.Identity())
    attach(network, gate, "0", check=False, layout="NCHW")
    return network


def _extra_maps(call: Callable[[Tensor], Tensor], h: Tensor) -> float:
    """Memory beyond the input that is kept until backward, in feature maps: the output and what
    autograd saved.
    """
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        keep(call(h))
    kept.pop(h.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / h.untyped_storage().nbytes()


def _share_of_a_step(repeats: int) -> list[dict[str, Any]]:
    """Forward and backward of the gate at L4, and hooks alone, as shares of a step of ResNet-50
    (batch 16, 224 px).
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("resnet50").train()
    images = torch.randn(16, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    h = torch.randn(16, 2048, 7, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    gate = _forward_backward(GaussianChaos(log_std=1.0), h, torch.ones_like(h))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(images).square().mean())
        optimizer.step()

    times = interleaved({"step": step, "gate": gate}, repeats)
    found = {
        "GaussianChaos in a ResNet-50 step": times["gate"],
        "hooks alone in it": _hooks(h[:, :1].detach()),
    }
    return [
        {"stage": "L4", "shape": "16x2048x7x7", "what": what, "both_ms": ms}
        | {"step_ms": times["step"], "share_of_step": ms / times["step"]}
        for what, ms in found.items()
    ]


def _hooks(h: Tensor) -> float:
    """What hooks and their checks add to a forward and backward: the median over 500 rounds on a
    small map.
    """
    h.requires_grad_()
    gates = {"attached": _attached(GaussianChaos(log_std=1.0)), "not": GaussianChaos(log_std=1.0)}
    times = rounds(
        {name: _forward_backward(gate, h, torch.ones_like(h)) for name, gate in gates.items()}, 500
    )
    added: float = median(a - b for a, b in zip(*times.values(), strict=True))
    return added


def _forward(call: Callable[[Tensor], Tensor], h: Tensor) -> Callable[[], object]:
    return lambda: call(h)


def _forward_backward(
    call: Callable[[Tensor], Tensor], h: Tensor, grad: Tensor
) -> Callable[[], object]:
    def step() -> None:
        h.grad = None
        torch.autograd.backward(call(h), grad)

    return step
