"""Accelerators without one: fake CUDA tensors and the meta device raise where a device would be
waited for."""

import sys
from collections import Counter

import pytest
import timm
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import chaosgate as cg
from tests.inject.networks import timm_convnext, timm_swin, timm_vit
from tests.inject.test_engines import GATES

NETWORKS = {  # network, path and grid of a stage with 64 px images
    "resnet50": (
        lambda: (timm.create_model("resnet50"), torch.randn(2, 3, 64, 64)),
        "layer3",
        (4, 4),
    ),
    "convnext": (timm_convnext, "stages.3", (2, 2)),
    "swin": (timm_swin, "layers.2", (4, 4)),
    "vit": (timm_vit, "blocks.2", (4, 4)),
}


def gated(network, gate):
    build, path, grid = NETWORKS[network]
    model, x = build()
    gate.prepare(grid, torch.device("cpu"))  # the numbers of the law are computed once, on the host
    return model.train(), x, cg.attach(model, gate, path, check=False)


def on(device, model):
    """Parameters and buffers without values."""
    held = (*model.named_parameters(), *model.named_buffers())
    return {n: torch.empty_like(t, device=device).requires_grad_(t.requires_grad) for n, t in held}


# Solving for the strength of a matched gate takes 10 to 30 s with fake tensors.
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n == "matched" else n for n in GATES]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_training_forward_on_cuda_reads_no_value(name, network):
    model, x, handle = gated(network, GATES[name]())
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = torch.func.functional_call(
            model, on("cuda", model), (torch.empty_like(x, device="cuda"),)
        )
    assert y.device.type == "cuda" and handle.fired == 1


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_on_the_meta_device(name, network):
    model, x, handle = gated(network, GATES[name]())
    weights = on("meta", model)
    torch.func.functional_call(model, weights, (x.to("meta"),)).sum().backward()
    assert handle.fired == 1
    assert all(w.grad is not None for w in weights.values() if w.requires_grad)


def test_a_gate_that_reads_a_value_is_seen():
    class Reading(cg.Gate):
        def perturb(self, h, noise):
            return h * float(h.mean())

    model, x, _ = gated("resnet50", Reading())
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        torch.func.functional_call(model, on("cuda", model), (torch.empty_like(x, device="cuda"),))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(model, x):
    """Operators and calls of Python in one training forward, after two to warm up."""
    model(x), model(x)
    with Operators() as seen:
        model(x)
    assert "aten._local_scalar_dense.default" not in seen.names
    calls = [0]

    def count(frame, event, argument):
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    return sum(seen.names.values()), calls[0]


def test_what_a_gate_costs_in_operators_and_calls():
    model, x = timm.create_model("resnet18").train(), torch.randn(4, 3, 64, 64)
    operators, calls = counted(model, x)
    with cg.attach(model, cg.GaussianChaos(log_std=1.0), "L4"):
        more_operators, more_calls = counted(model, x)
    assert more_operators - operators <= 12 and more_calls - calls <= 150
