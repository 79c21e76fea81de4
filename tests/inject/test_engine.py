"""Gates under torch.compile, autocast, accumulation, and on a device that must not be waited for."""

import pytest
import timm
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import chaosgate as cg
import chaosgate.train.backbones
from chaosgate.field.white import Noise, advance
from chaosgate.gate import IIDLogNormal, SignedCorrelated

GATES = {
    "samplewise": lambda: cg.GaussianChaos(log_std=1.0),
    "wick, independent": lambda: cg.GaussianChaos(
        log_std=1.0, realization="wick", channels="independent"
    ),
    "resized": lambda: cg.GaussianChaos(log_std=1.0, base_size=[3, 3]),
    "massive operator": lambda: cg.GaussianChaos(
        log_std=1.0, operator=cg.Massive(cg.Periodic(), 0.1)
    ),
    "dropout": lambda: cg.Dropout(0.1),
    "dropblock": lambda: cg.DropBlock(0.1),
    "gaussian": lambda: cg.IIDGaussian(0.1),
    "matched": lambda: cg.CorrelatedGaussian(match=cg.GaussianChaos(log_std=1.0)),
    "iid log-normal": lambda: IIDLogNormal(match=cg.Dropout(0.1)),
    "signed": lambda: SignedCorrelated(0.3),
}
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return timm.create_model("resnet10_small").train()


@pytest.mark.parametrize("name", ["samplewise", "dropblock", "matched"])
def test_compiled_whole_without_recompiling_and_with_the_same_gates(name):
    def logits(compiled):
        model = network()
        frames = []
        with cg.attach(model, GATES[name](), ["L3", "L4"]) as handle:
            handle.check(IMAGES)
            run = model
            if compiled:
                torch.compiler.reset()
                counter = CompileCounterWithBackend("aot_eager")
                run = torch.compile(model, backend=counter, fullgraph=True)
            outputs = []
            for _ in range(4):
                outputs.append(run(IMAGES))
                outputs[-1].square().mean().backward()
                frames.append(counter.frame_count if compiled else 0)
            assert (handle.step, handle.fired) == (4, 8)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        return torch.stack(outputs).detach(), gradient, frames

    plain, plain_gradient, _ = logits(compiled=False)
    whole, gradient, frames = logits(compiled=True)
    assert len(set(frames)) == 1, f"recompiled: graphs after each step {frames}"
    assert torch.allclose(plain, whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(plain_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole[0], whole[1])  # a fresh gate each step


@pytest.mark.parametrize("name", ["samplewise", "dropout", "gaussian"])
def test_autocast_changes_rounding_not_gates(name):
    def logits(half):
        model = network()
        with cg.attach(model, GATES[name](), ["L4"], check=False) as handle:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                model(IMAGES)
            with (
                handle.forced(draw=1, record=True) as maps,
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
            ):
                model.eval()(IMAGES)
            before, after = maps[handle.sites[0].module]
            return before.float(), after.float(), after.dtype

    before, after, _ = logits(half=False)
    before_half, after_half, dtype = logits(half=True)
    assert dtype in (torch.bfloat16, torch.float32)
    if name == "gaussian":  # additive: the same noise up to the rounding of the features
        scale = before.square().mean((1, 2, 3), keepdim=True).sqrt()
        assert torch.allclose(
            (after - before) / scale, (after_half - before_half) / scale, atol=0.1
        )
        return
    shown = (before > 0.1) & (before_half > 0.1)
    ratio, ratio_half = after[shown] / before[shown], after_half[shown] / before_half[shown]
    assert torch.allclose(ratio, ratio_half, rtol=2e-2)  # bfloat16 has 8 bits


def test_accumulated_gradients_are_those_of_the_micro_batches():
    gate = cg.GaussianChaos(log_std=1.0)
    model = network()
    with cg.attach(model, gate, ["L4"], check=False) as handle:
        for _ in range(3):
            (model(IMAGES).square().mean() / 3).backward()
        together = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert handle.step == 3
    parts = []
    for step in range(3):
        model = network()
        with cg.attach(model, gate, ["L4"], check=False) as handle:
            handle.load_state_dict({"step": step, "fired": 0})
            model(IMAGES).square().mean().backward()
        parts.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(together, torch.stack(parts).mean(0), rtol=1e-4, atol=1e-7)


class OneDevice(TorchDispatchMode):
    """Fails on every operation that moves data between devices, mixes devices or reads a number.

    The meta device stands for the accelerator: it is not the host, and nothing can be read from it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func), "a scalar is read on the host"
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # A kernel takes a number of the host with it; it does not take an array.
        assert all(tensor.is_meta or tensor.ndim == 0 for tensor in given), (
            f"{func} gets data of the host"
        )
        if "_to_copy" in str(func) or "copy_" in str(func):
            assert (
                isinstance(result, torch.Tensor)
                and result.is_meta
                and all(t.is_meta for t in given)
            ), f"{func}"
        return result


class NoUpload(TorchFunctionMode):
    """Fails where a tensor is made of numbers of the host, which no operation shows."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func in (torch.tensor, torch.as_tensor, torch.from_numpy, torch.Tensor.new_tensor)
        assert not made, f"{func.__name__} copies numbers to the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", GATES)
def test_forward_path_never_waits_for_the_device(name):
    gate = GATES[name]()
    gate.prepare(
        (7, 6), torch.device("cpu")
    )  # the numbers of the law are computed once, on the host
    h = torch.empty(2, 5, 7, 6, device="meta").relu()
    key, step = (torch.empty((), dtype=torch.int64, device="meta") for _ in range(2))
    gate.prepare((7, 6), h.device)
    with OneDevice(), NoUpload():
        step.add_(1)
        y = gate.perturb(h, Noise(advance(key, step)))
    assert y.shape == h.shape and y.is_meta


UPLOADS = {
    "a number is read": lambda h: h * float(h.mean()),
    "data-dependent shape": lambda h: h[h > 0],
    "a table of the host": lambda h: h @ torch.ones(6, 6),
    "a table is copied": lambda h: h * torch.ones(7, 6).to(h.device),
    "numbers are copied": lambda h: h * torch.tensor([1.0] * 6, device=h.device),
    "an index of the host": lambda h: h[:, torch.arange(3)],
    "copied into place": lambda h: h.copy_(torch.ones(2, 5, 7, 6)),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_waiting_for_the_device_is_seen(name):
    h = torch.empty(2, 5, 7, 6, device="meta")
    with pytest.raises((AssertionError, RuntimeError)), OneDevice(), NoUpload():
        UPLOADS[name](h)
