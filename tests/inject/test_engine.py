"""Gates under torch.compile, autocast, accumulation, and on a device that must not be waited
for."""

import pytest
import timm
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import chaosgate as cg
import chaosgate.train.backbones
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
