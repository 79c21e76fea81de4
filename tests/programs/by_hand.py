"""A small network with a gate written by hand: what ``attach`` must equal in other programs."""

import timm
import torch

import chaosgate as cg
from chaosgate.field.white import Noise, advance, fold


def network():
    torch.manual_seed(0)
    return timm.create_model(
        "resnet18", layers=(1, 1, 1, 1), channels=(8, 16, 16, 32), num_classes=10
    )


def batches(number, size=4, side=64):
    stream = torch.Generator().manual_seed(1)
    images = torch.randn(number, size, 3, side, side, generator=stream)
    return list(zip(images, torch.randint(10, (number, size), generator=stream), strict=True))


def gate():
    return cg.GaussianChaos(log_std=1.0)


class ByHand:
    """A hook that multiplies the output of a module by the gates of (seed 0, rank, path, step)."""

    def __init__(self, module, path, rank=0):
        self.gate, self.key, self.step = gate(), fold(0, rank, path), 0
        module.register_forward_hook(self)

    def __call__(self, module, args, output):
        if not module.training:
            return None
        self.step += 1
        return self.gate.perturb(output, Noise(advance(advance(self.key, self.step), 0)))


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def descend(model, data, loss_of, lr=0.1):
    """The weights after one step of SGD for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for images, labels in data:
        optimizer.zero_grad()
        loss_of(model, images, labels).backward()
        optimizer.step()
    return weights(model)


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def compare(train, build=network, path="layer4", stages="L4", **options):
    """Run a program with an attached gate, one written by hand and none.

    ``train`` takes a model and returns tensors by name; those of the first two must be equal to the
    last bit, and are returned.
    """
    model = build()
    with cg.attach(model, gate(), stages, **options) as handle:
        attached = train(model)
    model = build()
    hook = ByHand(model.get_submodule(path), path)
    by_hand, plain = train(model), train(build())
    assert handle.fired == hook.step > 0
    assert equal(attached, by_hand) and not equal(attached, plain)
    return attached
