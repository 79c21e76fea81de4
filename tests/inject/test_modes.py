"""Which forwards are noised and how strongly; what the check says."""

import copy

import pytest
import timm
import torch
from torch import nn

import chaosgate as cg
from tests.inject.networks import Noting, Shared, build, gate, gated, images


def test_fresh_noise_when_the_model_is_entered_otherwise():
    """A step for every pass of each of the two sites, replayed by the counter."""

    def run(start):
        with gated(stages=["L3", "L4"]) as (model, x, handle):
            handle.load_state_dict({"step": start, "fired": 0})
            found = [model.forward_head(model.forward_features(x)).detach() for _ in range(3)]
            return torch.stack(found), handle.step

    whole, step = run(0)
    assert not torch.equal(whole[0], whole[1]) and not torch.equal(whole[1], whole[2]) and step == 6
    assert torch.equal(run(2)[0][:2], whole[1:])


def test_a_forward_that_raised_leaves_nothing_behind():
    def out_of_memory(*_):
        raise RuntimeError("out of memory")

    with gated() as (model, x, handle):
        failing = model.fc.register_forward_hook(out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(x)
        failing.remove()
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 7, 32, 32))
        assert not torch.equal(model.forward_features(x), model.forward_features(x))
        assert not torch.equal(model(x), model(x)) and handle.fired == 5


def test_a_gate_follows_the_mode_of_its_module():
    with gated() as (model, x, handle):
        model.layer4.eval()
        with pytest.raises(RuntimeError, match="'layer4' is in evaluation mode while the model"):
            model(x)
        plain = model.eval()(x)
        assert handle.fired == 0
        model.layer4.train()
        assert not torch.allclose(model(x), plain) and handle.fired == 1


def test_frozen_batch_norms_do_not_silence_a_gate():
    model, x = build("timm resnet")
    for module in model.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with cg.attach(model, gate(), "L4") as handle:
        assert not torch.equal(model(x), model(x)) and handle.fired == 2
    norm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.Flatten())
    with cg.attach(norm, gate(), "1", check=False) as handle:  # that of its parent counts
        norm(images(8))
        norm.eval()(images(8))
        assert handle.fired == 1


def test_a_module_that_runs_twice_draws_twice():
    model, x, one = Shared().train(), images(8), Noting()
    with cg.attach(model, one, "block", check=False) as handle:
        model(x)
        model(x)
    assert len(set(one.drawn)) == 4 and handle.fired == 4 and handle.step == 2


@pytest.mark.parametrize(("name", "module"), [("timm_mixer", "blocks.2"), ("timm resnet", "L4")])
def test_a_head_that_starts_at_zero_is_a_warning(name, module):
    model, x = build(name)
    nn.init.zeros_(model.get_classifier().weight)
    example = x if name == "timm_mixer" else None
    with cg.attach(model.train(), gate(), module, example=example) as handle:
        with pytest.warns(UserWarning, match="zero at initialization.*(head|fc)"):
            model(x)
        assert handle.fired == 1


def loud_swin():
    model, x = build("timm swin")
    nn.init.normal_(model.patch_embed.proj.weight, std=10.0)  # far above the epsilon of the norms
    return model, x


def class_token():
    return timm.create_model("vit_small_patch16_224", depth=6, num_classes=10), images(224, batch=1)


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        self.idle(x)
        return self.used(x).mean((2, 3))


WEAK = cg.GaussianChaos(log_std=1e-9)
LOST = {  # network, module, gate, what is said
    "before a norm": (loud_swin, "layers.3", gate(), "later normalization.*'norm' works"),
    "class token": (class_token, "blocks.5", gate(), "not reach the output.*'blocks.3' works"),
    "dead path": (lambda: (Idle(), images(8)), "idle", gate(), "no layer that the output depends"),
    "weak": (lambda: build("timm resnet"), "L3", WEAK, "the gate leaves the features as they are"),
    "no image": (
        lambda: (build("timm resnet")[0], images(32, batch=0)), "L3", gate(), "the batch is empty"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_gate_without_effect_is_refused_until_something_changes(name):
    """With the measured cause, and with a place that was tried and works."""
    make, module, one, says = LOST[name]
    model, x = make()
    with cg.attach(model.train(), one, module) as handle:
        for _ in range(2):
            with pytest.raises(ValueError, match=says) as refusal:
                model(x)
        assert handle.fired == 0
    if "works" in says:
        with cg.attach(model, one, str(refusal.value).split("stages=['")[1].split("']")[0]):
            model(x)


def test_statistics_of_the_construction_hide_a_gate_in_evaluation_only():
    body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    nn.init.normal_(body[0].weight, std=1e-5)
    model = nn.Sequential(body, nn.AvgPool2d(6), nn.Flatten(), nn.Linear(8, 5)).train()
    with cg.attach(model, gate(), "0") as handle:
        model(images(8))
        assert handle.check(images(8))[0].logit_change < 1e-3 and handle.fired == 1


# -- strength --------------------------------------------------------------------------------------


def test_ramp_waits_rises_and_holds():
    shares = (0.0, 0.25, 0.375, 0.5, 1.0)
    assert [cg.Ramp(0.25, 0.5)(done) for done in shares] == [0, 0, 0.5, 1, 1]
    assert [cg.Ramp(0.25, 0.25)(done) for done in shares] == [0, 1, 1, 1, 1]  # a late switch
    assert [cg.Ramp(0, 0)(done) for done in shares] == [1] * 5
    for ends in ((0.5, 0.4), (1, 1), (-0.1, 1), (0, 1.5), (float("nan"), 1)):
        with pytest.raises(ValueError, match="start <= until"):
            cg.Ramp(*ends)


DIALLED = [
    *(gate(log_std=1.0, realization=one) for one in ("samplewise", "wick")),
    *(cg.Dropout(0.2), cg.DropBlock(0.2), cg.DropBlock(0.2, rate="published")),
]


@pytest.mark.parametrize("one", DIALLED)
def test_the_strength_is_scaled_and_zero_is_no_noise(one):
    energy = {}
    with gated(one=one, train=False, check=True) as (model, x, handle), torch.no_grad():
        for factor in (0.0, 0.25, 1.0):
            handle.set_strength(factor)
            with handle.forced(draw=1, record=True) as maps:
                model(x)
            before, after = maps["layer4"]
            energy[factor] = float((after - before).square().sum())
        handle.set_strength(0.0)
        model.train()
        assert torch.equal(model(x), model(x)) and handle.fired == 2  # to the last bit
        for wrong in (-0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match="factor from 0 .* to 1"):
                handle.set_strength(wrong)
    assert energy[0.0] == pytest.approx(0.0, abs=1e-9) and 0 < energy[0.25] < energy[1.0]
    assert one.factor is None


def test_the_reported_energy_follows_the_strength():
    with gated() as (_, x, handle):
        handle.set_strength(0.5)
        dialled = handle.check(x)[0].energy
    with gated(one=gate(log_std=0.5)) as (_, x, handle):
        # interpolated between fixed draws
        assert dialled == pytest.approx(handle.check(x)[0].energy, rel=1e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("one", [gate(), cg.Dropout(0.3), cg.DropBlock(0.2, 3)])
def test_the_reported_energy_is_the_mean_over_draws(one):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten())
    batch, reports = torch.randn(8, 3, 7, 7), []
    for seed in (0, 5):
        with cg.attach(model, one, stages=["1"], seed=seed) as handle:
            reports += handle.check(batch)
    h = model[:2](batch).detach()
    one.reseed(1)
    one.train()
    draws = [(one(h) - h).detach().square().sum() / h.square().sum() for _ in range(400)]
    # 4 standard errors of 400 draws, and of the 32 (or more) behind an expectation without closed
    # form
    error = float(torch.stack(draws).std()) * (400**-0.5 + 32**-0.5)
    mean = float(torch.stack(draws).mean())
    assert reports[0].images == 8 and reports[0].energy == pytest.approx(mean, abs=4 * error)
    assert reports[1].energy == pytest.approx(reports[0].energy, rel=1e-6)  # another seed


# -- around ----------------------------------------------------------------------------------------


def test_gates_that_are_layers_draw_noise_of_their_own():
    """Copies too; and they continue after a restart."""
    model, again = (nn.Sequential(gate(), gate()).train() for _ in range(2))
    x = torch.ones(2, 3, 5, 5)
    assert not torch.equal(model[0](x), model[1](x))
    cg.load_noise_state_dict(again, cg.noise_state_dict(model))
    assert torch.equal(model(x), again(x))
    assert not torch.equal(copy.deepcopy(model)(x), model(x))


def test_autocast():
    with gated(check=True) as (model, x, handle), torch.autocast("cpu", torch.bfloat16):
        first, second = model(x), model(x)
        assert first.dtype == torch.bfloat16
        assert not torch.equal(first, second) and handle.fired == 2


def test_what_is_checked_and_averaged_in_inference_mode_is_of_use_in_training():
    with gated(train=False) as (model, x, handle):
        with torch.inference_mode():
            handle.check(x)
            handle.set_strength(0.5)
            with handle.monte_carlo(2):
                model(x)
        handle.set_strength(1.0)
        model.train()(x).sum().backward()
        assert handle.fired == 1 and model.conv1.weight.grad is not None
