"""Where a gate acts, with which noise, and what stays as it was, for networks of every library."""

import copy
import io
import pickle

import pytest
import timm
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import chaosgate as cg
from chaosgate.inject.layout import logits_of as logits
from tests.inject.networks import FAMILIES, Wrapper, build, features_of, gate, gated, images


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_are_fresh_positive_and_of_mean_one_on_the_true_grid(family):
    """One for all channels; none in evaluation; keys untouched."""
    model, x = build(family)
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    with cg.attach(model, gate(), "L3") as handle, torch.no_grad():
        report = handle.check(x)[0]
        assert (report.grid, report.channels) == FAMILIES[family][1:]
        site = handle.sites[0]
        seen = features_of(model, site.module)
        model.train()
        first, second = logits(model(x)), logits(model(x))
        assert not torch.equal(first, second) and (handle.step, handle.fired) == (2, 2)
        assert list(model.state_dict()) == list(weights)
        model.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(model.eval()(x)), bare)
        plain_map = site.layout.to_map(seen[-1]).double()
        with handle.forced(1):
            model(x)
        assert torch.equal(seen[-1][:, : site.layout.prefix], seen[-2][:, : site.layout.prefix])
        ratio = site.layout.to_map(seen[-1]).double() / plain_map
        firm = plain_map.abs() > 1e-2 * plain_map.abs().mean()
        shared = torch.where(firm, ratio, torch.nan).nanmedian(1, keepdim=True).values
        assert torch.allclose(ratio[firm], shared.expand_as(ratio)[firm], rtol=1e-3)
        means = shared[~shared.isnan().flatten(1).any(1)].flatten(1).mean(1)
        assert torch.allclose(means, torch.ones_like(means), atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_is_the_plain_network(family):
    """Equal in evaluation, trainable by itself, during and after."""
    model, x = build(family)
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    handle = cg.attach(model, gate(), "L3")
    twin = copy.deepcopy(model.train())
    with torch.no_grad():
        assert torch.equal(logits(twin.eval()(x)), bare)
        handle.remove()
        logits(twin.train()(x))
        twin.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(twin.eval()(x)), bare)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_inside_another_module(family):
    model, x = build(family)
    inner, outer = cg.resolve_stages(model, x[:1]), Wrapper(model)
    found = {stage: f"backbone.{name}" for stage, name in inner.items()}
    assert cg.resolve_stages(outer, x[:1]) == found
    with cg.attach(outer, gate(), "L3") as handle:
        report = handle.check(x)[0]
    assert (report.grid, report.channels) == FAMILIES[family][1:]


@pytest.mark.parametrize(
    "name", ["efficientnet_b0", "regnety_004", "mobilenetv3_small_100", "densenet121"]
)
def test_more_backbones_feel_the_gate_at_every_stage(name):
    model, x = timm.create_model(name), images(96, batch=2)
    bare = model.eval()(x).detach()
    weights = copy.deepcopy(model.state_dict())
    for stage in ("L2", "L3", "L4"):
        with cg.attach(model.train(), gate(), stage) as handle:  # the first forward checks
            model(x).square().sum().backward()
            assert handle.fired == 1
        model.load_state_dict(weights)  # running statistics
        assert torch.equal(model.eval()(x), bare)


QUARTERS = {"L1": "blocks.2", "L2": "blocks.4", "L3": "blocks.7", "L4": "blocks.9"}
HEADS = {f"L{k}": f"stages.{k}.downsample.0" for k in (1, 2, 3)}


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("resnet50", {f"L{k}": f"layer{k}" for k in (1, 2, 3, 4)}),
        ("swin_tiny_patch4_window7_224", {"L4": "norm"}),
        ("convnext_tiny", HEADS | {"L4": "stages.3"}),
        ("vit_small_patch16_224", QUARTERS),
    ],
)
def test_stages_are_places_where_a_gate_survives(name, stages):
    assert stages.items() <= cg.resolve_stages(timm.create_model(name)).items()


GATE_AND_STAGE = r"one gate and stages"
REFUSED = {  # gate, stages, options, what is said
    "no such stage": (gate(), "L5", {}, "no stage or module 'L5'"),
    "a typing mistake": (gate(), ["layre4"], {}, "Did you mean 'layer4'"),
    "no stage": (gate(), [], {}, GATE_AND_STAGE),
    "a stage twice": (gate(), ["L4", "L4"], {}, GATE_AND_STAGE),
    "stages twice": ({"L3": gate()}, "L4", {}, GATE_AND_STAGE),
    "two names": (gate(), ["L4", "layer4"], {}, "'L4' and 'layer4' are the same module"),
    "no gate": ({"L4": nn.Identity()}, None, {}, "Gate at L4"),
    "layout": (gate(), "L4", {"layout": "CHW"}, "layout is one of NCL"),
    "grid": (gate(), "L4", {"grid": 7}, "grid is for tokens"),
    "coupled": (gate(), ["L3", "L4"], {"coupled": True}, "same base_size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_attach_refuses(name):
    one, stages, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        cg.attach(build("timm resnet")[0], one, stages, **options)


def test_a_second_gate_is_refused_with_the_way_to_the_first():
    model, _ = build("timm resnet")
    first = cg.attach(model, gate(), "L4")
    with pytest.raises(ValueError, match="'layer4' already has a gate.*GaussianChaos"):
        cg.attach(model, cg.Dropout(0.1), "layer4")
    assert cg.Attachment.on(model) == [first]
    first.remove()
    cg.attach(model, cg.Dropout(0.1), "layer4").remove()


def test_several_gates_in_one_call():
    model, x = build("timm resnet")
    with cg.attach(model, {"L3": gate(log_std=0.5), "L4": gate(log_std=1.0)}) as handle:
        found = {report.stage: report.nominal["log_std"] for report in handle.check(x)}
    assert found == pytest.approx({"L3": 0.5, "L4": 1.0})


def test_noise_is_a_function_of_seeds_rank_and_step():
    def run(own=None, **options):
        model, x = build("timm resnet")
        one = cg.GaussianChaos(log_std=1.0, seed=own)
        with cg.attach(model.train(), one, ["L3"], check=False, **options):
            return torch.stack([model(x).detach() for _ in range(2)])

    plain = run()
    assert torch.equal(plain, run(seed=0, rank=0)) and not torch.equal(plain[0], plain[1])
    for other in ({"seed": 1}, {"rank": 1}, {"own": 3}):
        assert not torch.equal(plain, run(**other)) and torch.equal(run(**other), run(**other))


def test_a_check_leaves_no_trace():
    model, x = build("timm resnet")
    before = copy.deepcopy(model.train().state_dict())
    stream = torch.get_rng_state()
    for one in (gate(), cg.Dropout(0.1), cg.DropBlock(0.1), cg.IIDGaussian(0.1)):
        with cg.attach(model, one, ["L4"]) as handle:
            report = handle.check(x)[0]
            assert handle.step == 0 and handle.fired == 0 and report.grid == (4, 4)
            assert report.energy > 0 and 0 < report.positive_share <= 1
            assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
            assert all(module.training for module in model.modules())
            model(x)
            model.load_state_dict(before)
        assert torch.equal(stream, torch.get_rng_state())


def test_monte_carlo_averages_probabilities():
    with gated(train=False) as (model, x, handle), torch.no_grad():
        plain = model(x)
        parts = []
        for draw in (1, 2, 3):
            with handle.forced(draw):
                parts.append(model(x).softmax(-1))
        with handle.monte_carlo(3):
            averaged = model(x)
        assert torch.allclose(averaged.exp(), torch.stack(parts).mean(0), atol=1e-6)
        assert torch.equal(model(x), plain)  # and after it evaluation is the identity again
        with handle.monte_carlo(3, step=1):
            assert not torch.equal(model(x), averaged)


def test_averaged_models_are_plain():
    """timm's ModelEmaV3 and torch's AveragedModel."""
    bare = (lambda model, x: model.eval()(x).detach())(*build("timm resnet"))
    with gated() as (model, x, _):
        for average in (timm.utils.ModelEmaV3(model), AveragedModel(model)):
            assert torch.equal(average.module.eval()(x), bare)
            average.train()
            assert torch.equal(average.module(x), average.module(x))


def test_saved_models_are_plain_and_saving_says_so():
    with gated(train=False) as (model, x, _):
        bare, file = model(x).detach(), io.BytesIO()
        with pytest.warns(UserWarning, match="without its gates"):
            back = pickle.loads(pickle.dumps(model))
        with pytest.warns(UserWarning, match="without its gates"):
            torch.save(model, file)
    file.seek(0)
    for loaded in (back, torch.load(file, weights_only=False)):
        assert torch.equal(loaded.eval()(x), bare)
        assert torch.equal(loaded.train()(x), loaded(x))


def test_copies_that_share_hooks_are_refused_where_a_gate_would_act():
    """As torch.nn.DataParallel makes them."""
    with gated() as (model, x, handle), torch.no_grad():
        with pytest.raises(RuntimeError, match="shares its hooks.*DataParallel"):
            copy.copy(model)(x)
        model.eval()
        assert torch.equal(copy.copy(model)(x), model(x))
        with pytest.raises(RuntimeError, match="shares its hooks"), handle.monte_carlo(2):
            copy.copy(model)(x)
