"""What a gate costs on feature maps of ResNet-50, against a bare copy, a bare multiply, and the
usual dropouts.
"""

import gc
import math
from collections.abc import Callable
from functools import partial
from statistics import fmean, median, stdev

import timm
import torch
from timm.layers.drop import DropBlock2d
from torch import Tensor, nn

from benchmarks.timing import Row, interleaved, keep_memory, rounds
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
UNIT = "broadcast multiply"


def run(repeats: int = 15) -> list[Row]:
    """Forward, and forward with backward, at the three late stages of ResNet-50 with batch 64.

    Times are means over all steps, so that whatever a gate does in some steps only would count too;
    ``both_error`` is the standard error of ``both_over_multiply``. What hooks and their checks add
    is too little to be seen beside these maps, so they are timed on one channel as well: the median
    of attached minus not attached.
    """
    keep_memory()
    rows = [row for stage in SHAPES for row in measure_stage(stage, SHAPES[stage], repeats)]
    return [*rows, *_share_of_a_step(min(repeats, 3))]


def measure_stage(stage: str, shape: tuple[int, int, int, int], repeats: int) -> list[Row]:
    """Times of every contender on features of one shape."""
    gc.collect()
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    fixed = torch.rand(shape[0], 1, *shape[2:])
    contenders: dict[str, Callable[[Tensor], Tensor]] = {
        "copy": torch.clone,
        UNIT: lambda x: x * fixed,
        "GaussianChaos": GaussianChaos(log_std=1.0),
        "GaussianChaos attached": _attached(),
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
            forward = rounds({name: partial(call, h) for name, call in contenders.items()}, repeats)
        both = rounds({name: _both(call, h) for name, call in contenders.items()}, repeats)
    rows = []
    for name, call in contenders.items():
        row: Row = {"stage": stage, "shape": "x".join(map(str, shape)), "what": name}
        for kind, times in (("forward", forward), ("both", both)):
            row[f"{kind}_ms"] = fmean(times[name])
            row[f"{kind}_over_multiply"] = fmean(times[name]) / fmean(times[UNIT])
        # of the ratio of two means, from what is left of each round after it is taken out
        pairs = zip(both[name], both[UNIT], strict=True)
        rest = [time - row["both_over_multiply"] * unit for time, unit in pairs]
        error = stdev(rest) / len(rest) ** 0.5 / fmean(both[UNIT]) if repeats > 1 else math.nan
        rows.append({**row, "both_error": error, "extra_maps": _extra_maps(call, h)})
    return rows


def _attached() -> nn.Module:
    """A network that is nothing but the place of a gate."""
    network = nn.Sequential(nn.Identity())
    attach(network, GaussianChaos(log_std=1.0), "0", check=False, layout="NCHW")
    return network


def _both(call: Callable[[Tensor], Tensor], h: Tensor) -> Callable[[], object]:
    grad = torch.ones_like(h)

    def step() -> None:
        h.grad = None
        torch.autograd.backward(call(h), grad)

    return step


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


def _share_of_a_step(repeats: int) -> list[Row]:
    """Forward and backward of the gate at L4, and hooks alone, as shares of a step of ResNet-50
    (batch 16, 224 px).
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("resnet50").train()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 224, 224, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    h = torch.randn(16, 2048, 7, 7, generator=generator).requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(images).square().mean())
        optimizer.step()

    gate = GaussianChaos(log_std=1.0)
    times = interleaved({"step": step, "gate": _both(gate, h)}, repeats)
    small = h[:, :1].detach().requires_grad_()
    pair = rounds({"attached": _both(_attached(), small), "not": _both(gate, small)}, 500)
    hooks = median(a - b for a, b in zip(*pair.values(), strict=True))
    found = {"GaussianChaos in a ResNet-50 step": times["gate"], "hooks alone in it": hooks}
    return [
        {"stage": "L4", "shape": "16x2048x7x7", "what": what, "both_ms": ms}
        | {"step_ms": times["step"], "share_of_step": ms / times["step"]}
        for what, ms in found.items()
    ]
