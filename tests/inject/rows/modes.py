"""Which forwards are noised, by which gates and how strongly; which are refused."""

import copy

import pytest
import torch
from torch import nn

import chaosgate as cg
from tests.inject.networks import Shared, build, gate, images, timm_vit


def forward_features():
    """2: fresh noise when the model is entered otherwise, replayed by the counter."""

    def run(start):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), ["L3", "L4"], check=False) as handle:
            handle.load_state_dict({"step": start, "fired": 0})
            found = [model.forward_head(model.forward_features(x)).detach() for _ in range(3)]
            return torch.stack(found), handle.step

    whole, step = run(0)
    assert not torch.equal(whole[0], whole[1]) and not torch.equal(whole[1], whole[2]) and step == 6
    assert torch.equal(run(2)[0][:2], whole[1:])  # a step for every pass of each of the two sites


def forward_features_after_an_error():
    """2: a forward that raised behind the gate does not freeze the noise of those that enter
    otherwise."""
    model, x = build("timm resnet")

    def out_of_memory(*_):
        raise RuntimeError("out of memory")

    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        failing = model.fc.register_forward_hook(out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(x)
        failing.remove()
        assert not torch.equal(model.forward_features(x), model.forward_features(x))
        assert handle.step == 3 and handle.fired == 3


def frozen_site():
    """3: the model trains, the site is in evaluation mode."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        model.layer4.eval()
        with pytest.raises(
            RuntimeError, match="'layer4' is in evaluation mode while the model trains"
        ):
            model(x)
        assert handle.fired == 0


def root_in_evaluation():
    """3: the root is in evaluation mode, the site trains: the gate follows its site."""
    model, x = build("timm resnet")
    with cg.attach(model.eval(), gate(), "L4", check=False) as handle:
        plain = model(x)
        model.layer4.train()
        assert not torch.allclose(model(x), plain) and handle.fired == 1 and handle.step == 1


def frozen_batchnorm():
    """3: batch norms in evaluation mode do not silence the gate."""
    model, x = build("timm resnet")
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with cg.attach(model, gate(), "L4") as handle:
        assert not torch.equal(model(x), model(x)) and handle.fired == 2


def reused_module():
    """6: a module that runs twice in a forward draws twice."""
    model, x = Shared().train(), images(8)
    drawn = []

    class Noting(cg.Gate):
        def perturb(self, h, noise):
            drawn.append(noise.normal((4,)))
            return h * 1.1

    with cg.attach(model, Noting(), "block", check=False) as handle:
        model(x)
        model(x)
    assert len({tuple(d.tolist()) for d in drawn}) == 4 and handle.fired == 4 and handle.step == 2


def attached_twice():
    """6: a second gate is refused with the way to the first."""
    model, x = build("timm resnet")
    first = cg.attach(model, gate(), "L4")
    with pytest.raises(ValueError, match="'layer4' already has a gate.*GaussianChaos"):
        cg.attach(model, cg.Dropout(0.1), "layer4")
    assert cg.Attachment.on(model) == [first]
    first.remove()
    cg.attach(model, cg.Dropout(0.1), "layer4").remove()


def one_place_two_names():
    model, _ = build("timm resnet")
    with pytest.raises(ValueError, match="'L4' and 'layer4' are the same module"):
        cg.attach(model, gate(), ["L4", "layer4"])


def several_gates():
    """One call, several strengths, each at its stage."""
    model, x = build("timm resnet")
    with cg.attach(model, {"L3": gate(log_std=0.5), "L4": gate(log_std=1.0)}) as handle:
        found = {report.stage: report.nominal["log_std"] for report in handle.check(x)}
    assert found == pytest.approx({"L3": 0.5, "L4": 1.0})
    with pytest.raises(ValueError, match="one gate and stages"):
        cg.attach(model, {"L3": gate()}, "L4")
    with pytest.raises(ValueError, match="Gate at L4"):
        cg.attach(model, {"L4": nn.Identity()})


def zero_head():
    """8: a head that starts at zero hides the gate: a warning says so, and the training goes on."""
    resnet, small = build("timm resnet")
    nn.init.zeros_(resnet.fc.weight)
    hiera, large = build("timm_hiera")
    nn.init.zeros_(hiera.head.fc.weight)
    for model, x, module, grid, head in (
        (*build("timm_mixer"), "blocks.2", None, "head"),
        (*timm_vit(weight_init="jax"), "L4", None, "head"),
        (
            hiera,
            large,
            f"blocks.{len(hiera.blocks) - 1}",
            (7, 7),
            "head.fc",
        ),  # of the last stage, row by row
        (resnet, small, "L4", None, "fc"),
    ):
        assert not model.get_submodule(head).weight.any()
        example = x if module == "blocks.2" else None
        with cg.attach(model.train(), gate(), module, grid=grid, example=example) as handle:
            with pytest.warns(UserWarning, match=f"zero at initialization.*{head}"):
                model(x)
            assert handle.fired == 1


def strength_at_zero():
    """8, 9: a schedule that starts at nothing passes the check; remove() puts the factor back."""
    model, x = build("timm resnet")
    one = gate()
    with cg.attach(model.train(), one, "L4") as handle:
        handle.set_strength(0.0)
        assert torch.equal(model(x), model(x))
        handle.set_strength(1.0)
        assert not torch.equal(model(x), model(x))
        handle.set_strength(0.3)
        for wrong in (-0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match="factor from 0 .* to 1"):
                handle.set_strength(wrong)
    assert one.factor is None


def energy_at_a_strength():
    """9: the energy that others are matched to follows the factor, and alpha is part of the nominal
    strength."""
    model, x = build("timm resnet")
    weaker = gate(log_std=0.5)
    with cg.attach(model, gate(log_std=1.0), "L4") as handle:
        handle.set_strength(0.5)
        dialled = handle.check(x)[0].energy
    with cg.attach(model, weaker, "L4") as handle:
        assert dialled == pytest.approx(
            handle.check(x)[0].energy, rel=1e-3
        )  # interpolated between fixed draws
    assert gate(log_std=1.0, alpha=0.5).nominal((4, 4))["alpha"] == 0.5


def layers():
    """7: gates that are layers draw noise of their own, copies too, and continue after a
    restart."""
    model = nn.Sequential(gate(), gate()).train()
    x = torch.ones(2, 3, 5, 5)
    first, second = (layer(x) for layer in model)
    assert not torch.equal(first, second)
    again = nn.Sequential(gate(), gate()).train()
    cg.load_noise_state_dict(again, cg.noise_state_dict(model))
    assert torch.equal(model(x), again(x))
    assert not torch.equal(copy.deepcopy(model)(x), model(x))


def seed_of_the_gate():
    """7: a seed given to the gate selects the noise of an attached gate too."""

    def run(**seed):
        model, x = build("timm resnet")
        with cg.attach(model.train(), cg.GaussianChaos(log_std=1.0, **seed), "L4", check=False):
            return model(x)

    assert torch.equal(run(seed=3), run(seed=3))
    assert not torch.equal(run(seed=3), run(seed=4)) and not torch.equal(run(seed=3), run())


def refusal_stands():
    """8: what was refused is refused again, until something changes."""
    model, x = build("timm swin")
    nn.init.normal_(model.patch_embed.proj.weight, std=10.0)  # far above the epsilon of the norms
    with cg.attach(model.train(), gate(), "layers.3") as handle:
        for _ in range(2):
            with pytest.raises(ValueError, match="normalization behind.*'norm' works"):
                model(x)
        assert handle.fired == 0


def nobody_reads():
    """8: the cause is told apart."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            self.idle(x)
            return self.used(x).mean((2, 3))

    model = Idle().train()
    with (
        cg.attach(model, gate(), "idle"),
        pytest.raises(ValueError, match="nothing that the output depends on reads"),
    ):
        model(images(8))


def autocast():
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle, torch.autocast("cpu", torch.bfloat16):
        first, second = model(x), model(x)
        assert (
            first.dtype == torch.bfloat16 and not torch.equal(first, second) and handle.fired == 2
        )


def inference_mode():
    """What is checked, dialled and averaged in inference mode is of use in training."""
    model, x = build("timm resnet")
    with cg.attach(model.eval(), gate(), "L4") as handle:
        with torch.inference_mode():
            handle.check(x)
            handle.set_strength(0.5)
            with handle.monte_carlo(2):
                model(x)
        handle.set_strength(1.0)
        model.train()(x).sum().backward()
        assert handle.fired == 1 and model.conv1.weight.grad is not None


def after_an_error():
    """A forward that fails leaves nothing behind that the next one would notice."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 7, 32, 32))
        first, second = model(x), model(x)
        assert not torch.equal(first, second) and handle.fired == 2


ROWS = [
    forward_features,
    forward_features_after_an_error,
    frozen_site,
    root_in_evaluation,
    frozen_batchnorm,
    reused_module,
    attached_twice,
    one_place_two_names,
    several_gates,
    zero_head,
    strength_at_zero,
    energy_at_a_strength,
    layers,
    seed_of_the_gate,
    refusal_stands,
    nobody_reads,
    autocast,
    inference_mode,
    after_an_error,
]
